"""Reversing a sequence

This lab shows you that one attention layer can learn to reverse a sequence of digits if and only if it has
positions.

The target at the first position is the last digit, at the second position the one before it, and so on. Nothing has to
be computed, only copied. But to copy from the mirrored position, a layer must know which position that is.

Without positions, it knows which digits a sequence contains and which is its own. The lab computes the best accuracy
that this allows, and compares it with the accuracy after training.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnscope import AttentionMatrix
from attnscope.figures import heatmap, lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import read
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


SHORT, END, NUM_HEADS = 8, DIGITS, 8
"""Digits per sequence, the end marker, and heads per layer, for the roles of heads."""


def marked_sequences(count: int, generator: torch.Generator) -> Tensor:
    """Return rows of digits, the end marker, and the same digits reversed."""
    digits = torch.randint(DIGITS, (count, SHORT), generator=generator)
    return torch.cat([digits, torch.full((count, 1), END), digits.flip(1)], dim=1)


@cache
def train_decoder(seed: int, steps: int) -> Decoder:
    """Train a decoder of two layers with eight heads each to write the reversed digits after the end marker."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    config = DecoderConfig(
        vocab_size=DIGITS + 1,
        hidden_size=64,
        num_layers=2,
        num_heads=NUM_HEADS,
        intermediate_size=256,
        max_position_embeddings=2 * SHORT + 1,
    )
    model = Decoder(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        rows = marked_sequences(64, generator)
        loss = cross_entropy(model(rows[:, :-1])[:, SHORT:].flatten(0, 1), rows[:, SHORT + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def share_of_roles(model: Decoder, rows: Tensor) -> dict[str, Tensor]:
    """Return for each role the mean weight that each head gives to its key, while it writes the reversed digits.

    Args:
        model: A decoder.
        rows: Sequences of `marked_sequences`.

    Returns:
        By role, weights (layers * heads).
    """
    trace = read(model, rows[:, :-1], progress=False)
    weights = torch.cat([trace[name].to_dense() for name in trace], dim=1)[:, :, SHORT:].mean(0)  # heads, queries, keys
    written = torch.arange(SHORT)
    keys = {
        "mirrored digit: backward": SHORT - 1 - written,
        "digit of the same place: forward": written,
        "end marker": torch.full_like(written, SHORT),
        "current token": SHORT + written,
        "previous token": SHORT + written - 1,
    }
    return {role: weights[:, written, key].mean(-1) for role, key in keys.items()}


def roles_of_the_heads(lab: Lab) -> None:
    """One text says what eight heads learn from reversal: one reads the input forward, another backward, and a third
    looks for the end marker. A decoder of two layers with eight heads each reads eight digits and an end marker, and
    then writes the digits in reverse, one by one.

    For each head, the lab measures how much weight it gives to five kinds of keys while the model writes. A head has a
    role if it gives more than half of its weight to one kind, on average.
    """
    steps, count = lab.choose(small=300, full=3_000), 3
    held_out = marked_sequences(200, torch.Generator().manual_seed(1_000 + lab.seed))
    counts, strongest, accuracies = Counter[str](), dict[str, float](), []
    for seed in lab.seeds(count):
        lab.step(f"training a decoder, seed {seed}")
        model = train_decoder(seed, steps)
        with torch.no_grad():
            right = model(held_out[:, :-1])[:, SHORT:].argmax(-1) == held_out[:, SHORT + 1 :]
        accuracies.append(float(right.double().mean()))
        for role, shares in share_of_roles(model, held_out).items():
            counts[role] += int((shares > 0.5).sum())
            strongest[role] = max(strongest.get(role, 0.0), float(shares.max()))
    total = 2 * NUM_HEADS * count
    rows = [
        *((role, counts[role], strongest[role]) for role in strongest),
        ("none of them", total - sum(counts.values()), "-"),
    ]
    note = f"{count} decoders of 16 heads; they reverse at least {min(accuracies):.1%} of the digits."
    columns = ("more than half of the weight on", f"heads, of {total}", "largest mean weight")
    lab.table("Roles of heads that write a reversed sequence", columns, rows, note=note)
    backward, forward, end = (list(strongest)[at] for at in range(3))
    lab.decide(
        "48",
        Verdict.NOT_SHOWN,
        f"The text shows no trained heads. Here, {counts[backward]} of {total} heads attend to the mirrored digit, "
        f"{counts[forward]} to the digit of the same place and {counts[end]} to the end marker.",
        Measurement(name="smallest accuracy", value=min(accuracies), low=0.99),
        Measurement(name="heads that read backward", value=counts[backward], low=4),
        Measurement(name="heads that read forward", value=counts[forward], high=4),
        Measurement(name="heads that look for the end", value=counts[end], high=4),
    )


PARTS = (
    bound_without_positions,
    training_with_and_without_positions,
    attention_pattern_of_the_trained_layer,
    roles_of_the_heads,
)
