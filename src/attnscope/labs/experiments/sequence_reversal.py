"""Can one layer of attention turn a row of digits round?

The task could not be simpler: what should come out at the first place is the digit at the last one, at the second
place the digit before that, and so on. Nothing has to be computed, only fetched. But to fetch the digit at the
mirrored place, a layer has to know which place that is.

Without positions it knows which digits a row has, and which of them is its own, and no more. What can be had from that
is computed first, so that what training reaches can be held against it.
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


class Learned(NamedTuple):
    """A model, and how many digits it got right on the way."""

    model: ReversalModel
    steps: list[int]
    accuracy: list[float]


@torch.no_grad()
def share_right(model: ReversalModel, rows: Tensor) -> float:
    """How many of the digits come out where they belong."""
    return float((model(rows).argmax(2) == rows.flip(1)).double().mean())


@cache
def trained(seed: int, steps: int, length: int, with_positions: bool) -> Learned:
    """One layer of four heads, trained on new random rows at every step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)  # of the rows: the same ones for both models
    model = ReversalModel(vocab_size=DIGITS, sequence_length=length, with_positions=with_positions)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps, pct_start=0.1)
    unseen = torch.randint(DIGITS, (1000, length), generator=generator)
    seen_steps, accuracy = [], []
    for step in range(steps + 1):
        if step % (steps // 30) == 0:
            seen_steps.append(step)
            accuracy.append(share_right(model, unseen))
        if step < steps:
            rows = torch.randint(DIGITS, (64, length), generator=generator)
            loss = cross_entropy(model(rows).flatten(0, 1), rows.flip(1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return Learned(model, seen_steps, accuracy)


@cache
def shares_of_every_row(seed: int, steps: int) -> dict[str, float]:
    """How much is right over all rows of four digits, by who answers."""
    every_row = torch.cartesian_prod(*[torch.arange(DIGITS)] * 4)
    torch.manual_seed(seed)
    fresh = ReversalModel(vocab_size=DIGITS, sequence_length=4, with_positions=False)
    return {
        "any digit for each": 1 / DIGITS,
        "not trained, without positions": share_right(fresh, every_row),
        "trained, without positions": share_right(trained(seed, steps, 4, False).model, every_row),
        "the best without positions": best_without_positions(every_row)[1],
        "trained, with positions": share_right(trained(seed, steps, 4, True).model, every_row),
    }


def the_best_without_positions(lab: Lab) -> None:
    """Without positions, two places with the same digit in rows of the same digits get the same answer.

    So the mirrored digit is one of the other digits of the row, each as likely as the next, and the best answer is
    whichever the rest of the row has most often. `best_without_positions` computes what that is worth.

    For rows of four digits there are only 10,000 rows, and all of them can be tried: no luck is left in the number. A
    layer as it comes from its initialisation and one that was trained are held against the bound; neither passes it.
    """
    shares = shares_of_every_row(lab.seed, lab.choose(small=300, full=3000))
    title = "All 10,000 rows of four digits: share of digits at their place"
    lab.table(title, ("layer", "share"), list(shares.items()))


def training_with_and_without(lab: Lab) -> None:
    """Two layers that differ in nothing but the positions learn to turn round rows of twelve digits.

    The one without positions soon has all that can be had, and stays there: what holds it back is not the training.
    The one with learned positions learns to guess just as fast, stays there for a while too, and then finds the rule.
    """
    steps = lab.choose(small=600, full=6000)
    lab.step("training without positions")
    blind = trained(lab.seed, steps, LENGTH, False)
    lab.step("training with positions")
    able = trained(lab.seed, steps, LENGTH, True)
    unseen = torch.randint(DIGITS, (20_000, LENGTH), generator=torch.Generator().manual_seed(lab.seed + 1))
    _, best = best_without_positions(unseen)
    without, with_them = share_right(blind.model, unseen), share_right(able.model, unseen)
    rows = [("without positions", without), ("the best without positions", best), ("with positions", with_them)]
    lab.table("20,000 rows of twelve digits: share of digits at their place", ("layer", "share"), rows)
    shares = shares_of_every_row(lab.seed, lab.choose(small=300, full=3000))
    above = shares["trained, without positions"] - shares["the best without positions"]
    leap = max(after - before for before, after in pairwise(able.accuracy))

    curves = {"with positions": able.accuracy, "without": blind.accuracy}
    title = "Positions make the difference: without them, training stops at what can be guessed"
    drawing = lines(
        able.steps,
        curves,
        xlabel="step",
        ylabel="digits at their place",
        title=title,
        reference_lines={"best guess": best},
    )
    lab.figure("training", drawing, "Share of digits that one layer puts at the mirrored place, on rows it never saw.")
    lab.decide(
        "16a",
        Verdict.HOLDS,
        f"Without positions one layer gets {without:.1%} of the digits right, and {best:.1%} is the most that any "
        "weights can be expected to: it has learned all there was to learn.",
        Measurement(name="share right without positions", value=without, low=0.2, high=0.35),
        Measurement(name="above the best without positions", value=without - best, low=-0.01, high=0.01),
        Measurement(name="the same over all rows of four digits", value=above, low=-0.02, high=0.001),
    )
    lab.decide(
        "16b",
        Verdict.HOLDS,
        f"With learned positions the same layer, trained on the same rows, gets {with_them:.2%} right. It waits at "
        f"what can be guessed, and then gains {leap:.0%} of the digits between two of thirty looks.",
        Measurement(name="share right with positions", value=with_them, low=0.99),
        Measurement(name="largest gain from one look to the next", value=leap, low=0.25),
    )


def where_the_layer_looks(lab: Lab) -> None:
    """The weights of the trained layer, averaged over its heads and over 1,000 rows of digits.

    Queries run down, keys to the right. The bright diagonal is the mirror: each place looks at the one it has to fetch
    from, whatever the digits are.
    """
    model = trained(lab.seed, lab.choose(small=600, full=6000), LENGTH, True).model
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
        title=f"Every place looks at its mirror: {mirror:.0%} of the weight",
    )
    lab.figure("mirror", drawing, "Where one layer looks that has learned to reverse: queries down, keys to the right.")


PARTS = (the_best_without_positions, training_with_and_without, where_the_layer_looks)
