"""Reversing a sequence

This lab shows you that one attention layer can learn to reverse a sequence of digits if and only if it has
positions.

The target at the first position is the last digit, at the second position the one before it, and so on. Nothing has to
be computed, only copied. But to copy from the mirrored position, a layer must know which position that is.

Without positions, it knows which digits a sequence contains and which is its own. The lab computes the best accuracy
that this allows, and compares it with the accuracy after training.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnscope import AttentionMatrix
from attnscope.figures import heatmap, lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.train.tasks import ReversalModel, best_without_positions

DIGITS, LENGTH = 10, 12


class TrainedModel(NamedTuple):
    """A model, and its accuracy during training."""

    model: ReversalModel
    steps: list[int]
    accuracy: list[float]


@torch.no_grad()
def accuracy_of(model: ReversalModel, rows: Tensor) -> float:
    """Return the share of correct digits."""
    return float((model(rows).argmax(2) == rows.flip(1)).double().mean())


@cache
def train(seed: int, steps: int, length: int, with_positions: bool) -> TrainedModel:
    """Train one layer of four heads on new random sequences at every step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)  # the same sequences for both models
    model = ReversalModel(vocab_size=DIGITS, sequence_length=length, with_positions=with_positions)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps, pct_start=0.1)
    held_out = torch.randint(DIGITS, (1000, length), generator=generator)
    seen_steps, accuracy = [], []
    for step in range(steps + 1):
        if step % (steps // 30) == 0:
            seen_steps.append(step)
            accuracy.append(accuracy_of(model, held_out))
        if step < steps:
            rows = torch.randint(DIGITS, (64, length), generator=generator)
            loss = cross_entropy(model(rows).flatten(0, 1), rows.flip(1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return TrainedModel(model, seen_steps, accuracy)


@cache
def accuracy_on_all_sequences(seed: int, steps: int) -> dict[str, float]:
    """Return the accuracy on all sequences of four digits, by model."""
    every_row = torch.cartesian_prod(*[torch.arange(DIGITS)] * 4)
    torch.manual_seed(seed)
    fresh = ReversalModel(vocab_size=DIGITS, sequence_length=4, with_positions=False)
    return {
        "random digits": 1 / DIGITS,
        "random initialisation, no positions": accuracy_of(fresh, every_row),
        "trained, no positions": accuracy_of(train(seed, steps, 4, False).model, every_row),
        "bound without positions": best_without_positions(every_row)[1],
        "trained, with positions": accuracy_of(train(seed, steps, 4, True).model, every_row),
    }


def bound_without_positions(lab: Lab) -> None:
    """Without positions, two tokens with the same digit in sequences of the same digits get the same output.

    So the target is one of the other digits of the sequence, all equally likely, and the best answer is the most
    frequent of them. `best_without_positions` computes the accuracy of this strategy.

    There are only 10,000 sequences of four digits, so the lab tests all of them. A randomly initialised layer and a
    trained one are compared with the bound; neither exceeds it.
    """
    shares = accuracy_on_all_sequences(lab.seed, lab.choose(small=300, full=3000))
    title = "Accuracy on all 10,000 sequences of four digits"
    lab.table(title, ("layer", "accuracy"), list(shares.items()))


def training_with_and_without_positions(lab: Lab) -> None:
    """Two layers that differ only in their positions are trained to reverse sequences of twelve digits.

    The layer without positions soon reaches the bound and stays there, so training is not the limit. The layer with
    learned positions first learns the same guess, stays there for a while, and then finds the rule.
    """
    steps = lab.choose(small=600, full=6000)
    lab.step("training without positions")
    without_positions = train(lab.seed, steps, LENGTH, False)
    lab.step("training with positions")
    with_positions = train(lab.seed, steps, LENGTH, True)
    held_out = torch.randint(DIGITS, (20_000, LENGTH), generator=torch.Generator().manual_seed(lab.seed + 1))
    _, best = best_without_positions(held_out)
    without, with_them = accuracy_of(without_positions.model, held_out), accuracy_of(with_positions.model, held_out)
    rows = [("without positions", without), ("bound without positions", best), ("with positions", with_them)]
    lab.table("Accuracy on 20,000 sequences of twelve digits", ("layer", "accuracy"), rows)
    shares = accuracy_on_all_sequences(lab.seed, lab.choose(small=300, full=3000))
    above = shares["trained, no positions"] - shares["bound without positions"]
    leap = max(after - before for before, after in pairwise(with_positions.accuracy))

    curves = {"with positions": with_positions.accuracy, "without positions": without_positions.accuracy}
    title = "Without positions, training stops at the bound"
    drawing = lines(
        with_positions.steps,
        curves,
        xlabel="step",
        ylabel="accuracy",
        title=title,
        reference_lines={"bound without positions": best},
    )
    lab.figure("training", drawing, "Accuracy of one layer on held-out sequences during training.")
    lab.decide(
        "16a",
        Verdict.HOLDS,
        f"Without positions, one layer has an accuracy of {without:.1%}, and the bound is {best:.1%}: it has learned "
        "all that can be learned.",
        Measurement(name="accuracy without positions", value=without, low=0.2, high=0.35),
        Measurement(name="accuracy minus the bound", value=without - best, low=-0.01, high=0.01),
        Measurement(name="the same on all sequences of four digits", value=above, low=-0.02, high=0.001),
    )
    lab.decide(
        "16b",
        Verdict.HOLDS,
        f"With learned positions, the same layer, trained on the same sequences, has an accuracy of {with_them:.2%}. "
        f"It stays at the bound for a while, and then gains {leap:.0%} between two of thirty evaluations.",
        Measurement(name="accuracy with positions", value=with_them, low=0.99),
        Measurement(name="largest gain between two evaluations", value=leap, low=0.25),
    )


def attention_pattern_of_the_trained_layer(lab: Lab) -> None:
    """The attention weights of the trained layer, averaged over its heads and over 1,000 sequences.

    Rows are queries, columns are keys. On the bright anti-diagonal, each position attends to the position that it has
    to copy from, whatever the digits are.
    """
    model = train(lab.seed, lab.choose(small=600, full=6000), LENGTH, True).model
    rows = torch.randint(DIGITS, (1000, LENGTH), generator=torch.Generator().manual_seed(lab.seed))
    assert model.position_embedding is not None
    with torch.no_grad():
        _, matrix = model.attention(model.embedding(rows) + model.position_embedding(LENGTH), return_matrix=True)
        weights = matrix.to_dense().mean((0, 1))
    mirror = float(weights.flip(1).diagonal().mean())
    places = [str(place + 1) for place in range(LENGTH)]
    drawing = heatmap(
        AttentionMatrix.from_dense(weights),
        places,
        title=f"Weight on the mirrored position: {mirror:.0%}",
    )
    lab.figure(
        "mirror",
        drawing,
        "Mean attention weights of a layer that has learned to reverse; rows are queries, columns are keys.",
    )


PARTS = (bound_without_positions, training_with_and_without_positions, attention_pattern_of_the_trained_layer)
