"""What does a mask keep out, and what happens to a row that sees nothing?

A mask says which keys a query may see. A causal mask hides what comes later, so that a model that learns to predict the
next token cannot read it; padding hides what only fills up a batch. Both are applied to the scores before the softmax:
a score of minus infinity has the exponential 0, and so the weight 0.

Many programs write a large negative number instead of minus infinity. Whether that is the same depends on the type of
the numbers, and on a case that is easily forgotten: a row in which every key is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnscope import AttentionMatrix, Causal, Padding, attend
from attnscope.figures import head_grid
from attnscope.labs import Lab, Measurement, Verdict

TYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ENGINES = ("reference", "fused", "streaming")
BILLION = -1e9
LENGTH, WIDTH = 32, 16
SHORT, PADDED = 8, 3
"""Tokens of a short text, and how many of them are padding."""


def future(length: int) -> Tensor:
    """(queries, keys): True where the key is later than the query.

    >>> future(2).tolist()
    [[False, True], [False, False]]
    """
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def fill_infinity(scores: Tensor, hidden: Tensor) -> Tensor:
    """Weights; hidden scores are replaced by minus infinity."""
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1)


def random_tokens(seed: int, length: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (batch, head, position, dim) in fp32."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 1, length, WIDTH, generator=generator) for _ in range(3))
    return query, key, value


def what_a_causal_mask_leaves(lab: Lab) -> None:
    """Three things are said of the weights under a causal mask: above the diagonal they are exactly 0, every row sums
    to 1, and the first position sees only itself. Here they are looked at in four types of numbers, for a softmax over
    scores filled with minus infinity and for each engine of `attend`. An engine that never builds the weights gives
    them away as its output if the values are the rows of the identity.

    "Exactly" is meant: 0 and 1 are compared without a tolerance. A sum of rounded weights is not exactly 1; it is
    measured in epsilons, the distance from 1 to the next number of that type.
    """
    length = lab.choose(small=64, full=512)
    query, key, _ = random_tokens(lab.seed, length)
    hidden, rows = future(length), []
    for name, dtype in TYPES.items():
        one, other, identity = query.to(dtype), key.to(dtype), torch.eye(length, dtype=dtype)[None, None]
        found = {"softmax": fill_infinity(one @ other.mT / WIDTH**0.5, hidden)}
        for engine in ENGINES:
            found[engine] = attend(one, other, identity, mask=Causal(), backend=engine)
        for way, weights in found.items():
            weights = weights[0, 0].double()
            sums = (weights.sum(dim=-1) - 1).abs().max().item() / torch.finfo(dtype).eps
            rows.append((name, way, weights[hidden].abs().max().item(), weights[0, 0].item(), sums))
    columns = ("type", "computed by", "largest weight in the future", "first weight", "sum off by, in epsilons")
    lab.table(f"Weights of {length} tokens under a causal mask", columns, rows)
    leaked, off = max(row[2] for row in rows), max(row[4] for row in rows)
    lab.decide(
        "7",
        Verdict.HOLDS,
        f"In all four types and by every engine the largest weight in the future is {leaked:g} and the first one is 1; "
        f"sums of rows are off by {off:.1f} epsilons at the most.",
        Measurement(name="largest weight in the future", value=leaked, low=0.0, high=0.0),
        Measurement(name="smallest first weight", value=min(row[3] for row in rows), low=1.0, high=1.0),
        Measurement(name="sum of a row off by, in epsilons", value=off, high=lab.choose(small=8.0, full=32.0)),
    )


def leaks(answer: Callable[[Tensor, Tensor, Tensor], Tensor], seed: int) -> tuple[float | str, float, int]:
    """What the first half of the outputs knows of the second half of the input.

    The largest gradient, how far outputs move when the second half is replaced, and how many of them are not finite
    when the last value is infinite.
    """
    half = LENGTH // 2
    tokens, others = tuple(part.requires_grad_() for part in random_tokens(seed)), random_tokens(seed + 1)
    query, key, value = tokens
    before = answer(query, key, value)[..., :half, :]
    slopes = torch.cat(torch.autograd.grad(before.square().sum(), (key, value)), dim=-1)
    steepest = slopes[..., half:, :].abs().max().item()
    with torch.no_grad():
        later = [
            torch.cat([old[..., :half, :], new[..., half:, :]], -2) for old, new in zip(tokens, others, strict=True)
        ]
        moved = (answer(*later)[..., :half, :] - before).abs().max().item()
        endless = value.clone()
        endless[..., -1, :] = math.inf
        broken = ~answer(query, key, endless)[..., :half, :].isfinite()
    return "NaN" if math.isnan(steepest) else steepest, moved, int(broken.any(dim=-1).sum())


def by_hand(hidden: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention that is written out, with a mask in which True hides."""
    return lambda query, key, value: fill_infinity(query @ key.mT / WIDTH**0.5, hidden) @ value


def whether_the_future_leaks(lab: Lab) -> None:
    """A weight of 0 is one thing, what gets through is another. So the first half of the outputs is asked what it knows
    of the second half of the input, in two ways: its gradient with respect to later keys and values, and how far it
    moves when all later tokens are replaced by others. Both have to be 0.

    Two mistakes are made on purpose, to see that these questions find them. A triangle that begins one place too late
    shows every token its successor. And a boolean mask can be read in two ways: in some functions of torch True hides,
    in others True shows. Read the wrong way round, every query sees nothing but the future, and the last one nothing at
    all, which spoils all gradients. For this reason `attend` takes no bare boolean.

    The last column is about something a weight of 0 cannot do: 0 times infinity is not a number. Padding has to be
    finite even where nobody looks.
    """
    ways: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "no mask": by_hand(torch.zeros(LENGTH, LENGTH, dtype=torch.bool)),
        "causal, written out": by_hand(future(LENGTH)),
        "causal, one place too late": by_hand(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2)),
        "causal, True read the wrong way round": by_hand(~future(LENGTH)),
    }
    for engine in ENGINES:
        ways[f"attend, {engine}"] = lambda query, key, value, engine=engine: attend(
            query, key, value, mask=Causal(), backend=engine
        )
    rows = [(name, *leaks(answer, lab.seed)) for name, answer in ways.items()]
    columns = ("mask", "largest gradient", "outputs move by", "rows lost to a last value that is infinite")
    lab.table(f"What {LENGTH // 2} outputs know of the {LENGTH // 2} tokens after them", columns, rows)


def add_billion(scores: Tensor, hidden: Tensor) -> Tensor:
    """Weights; a billion is taken away from hidden scores."""
    return (scores + hidden.to(scores.dtype) * BILLION).softmax(dim=-1)


def fill_billion(scores: Tensor, hidden: Tensor) -> Tensor | None:
    """Weights; hidden scores are replaced by minus a billion. None where torch refuses to."""
    try:
        return scores.masked_fill(hidden, BILLION).softmax(dim=-1)
    except RuntimeError:  # no number of this type is as small
        return None


def gap_that_gives_zero(dtype: torch.dtype) -> float:
    """How far a score has to lie below another one for its weight to be exactly 0: by halving an interval."""
    some, none = 0.0, 1_000.0
    for _ in range(40):
        middle = (some + none) / 2
        weight = torch.tensor([0.0, -middle], dtype=dtype).softmax(dim=-1)[1].item()
        some, none = (middle, none) if weight > 0 else (some, middle)
    return none


def a_large_negative_number_instead(lab: Lab) -> None:
    """One text masks with -1e9. Another warns that in fp16 this does not become an exact 0 after the softmax. What
    happens is the opposite: the fewer bits a type has, the sooner a weight is rounded to 0. In fp16 it takes a score
    about 17 below the largest one, in fp32 about 100.

    But -1e9 is not a number of fp16, which ends at -65,504. Filling scores with it is refused by torch with an error.
    Where it is computed with, it becomes minus infinity, and masks like minus infinity.
    """
    query, key, _ = random_tokens(lab.seed)
    rows, hidden = [], future(LENGTH)
    for name, dtype in TYPES.items():
        scores = (query.to(dtype) @ key.to(dtype).mT / WIDTH**0.5)[0, 0]
        filled, added = fill_billion(scores, hidden), add_billion(scores, hidden)
        largest = "refused" if filled is None else filled[hidden].max().item()
        becomes = f"{torch.tensor(BILLION, dtype=dtype).item():.4g}"
        rows.append((name, becomes, largest, added[hidden].max().item(), gap_that_gives_zero(dtype)))
    columns = ("type", "-1e9 becomes", "hidden weight, filled", "hidden weight, added", "gap that gives 0")
    lab.table("Masking with -1e9, in rows that see a key", columns, rows)
    half = rows[-1]
    lab.decide(
        "8b",
        Verdict.DOES_NOT_HOLD,
        f"In fp16 -1e9 becomes {half[1]}, and the largest hidden weight is {half[3]:g}: scores that are {half[4]:.1f} "
        "below the largest would do. What does fail is filling, which torch refuses.",
        Measurement(name="largest hidden weight in fp16, -1e9 added", value=half[3], low=0.0, high=0.0),
        Measurement(name="gap from which on a weight is 0 in fp16", value=half[4], low=16.0, high=18.0),
        Measurement(name="gap from which on a weight is 0 in fp32", value=rows[1][4], low=80.0, high=110.0),
    )


def add_infinity(scores: Tensor, hidden: Tensor) -> Tensor:
    """Weights; minus infinity is added to hidden scores."""
    return (scores + torch.zeros_like(scores).masked_fill(hidden, -math.inf)).softmax(dim=-1)


def add_billion_twice(scores: Tensor, hidden: Tensor) -> Tensor:
    """Weights; a billion is taken away for the future and again for padding, as when two masks are added up."""
    later = future(len(scores))
    padding = hidden[-1].expand_as(hidden)  # the last row sees all but the padding
    return (scores + (later.to(scores.dtype) + padding.to(scores.dtype)) * BILLION).softmax(dim=-1)


def fill_smallest(scores: Tensor, hidden: Tensor) -> Tensor:
    """Weights; hidden scores are replaced by the smallest number of their type."""
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1)


def padded_rows(seed: int, dtype: torch.dtype) -> dict[str, Tensor | None]:
    """The weights of eight tokens of which the first three are padding, by each way to mask; None is a refusal."""
    query, key, _ = (tokens.to(dtype) for tokens in random_tokens(seed, SHORT))
    hidden = future(SHORT) | (torch.arange(SHORT) < PADDED)
    scores = (query @ key.mT / WIDTH**0.5)[0, 0]
    found = {
        "filled with minus infinity": fill_infinity(scores, hidden),
        "minus infinity added": add_infinity(scores, hidden),
        "filled with -1e9": fill_billion(scores, hidden),
        "-1e9 added": add_billion(scores, hidden),
        "-1e9 added for each of two masks": add_billion_twice(scores, hidden),
        "filled with the smallest number": fill_smallest(scores, hidden),
    }
    mask = Causal() & Padding(keep=(torch.arange(SHORT) >= PADDED)[None])
    identity = torch.eye(SHORT, dtype=dtype)[None, None]
    return found | {"attend": attend(query, key, identity, mask=mask)[0, 0]}


def a_row_that_sees_nothing(lab: Lab) -> None:
    """Texts of different lengths are padded so that they fit into one batch; for generation on the left. Then the mask
    hides everything from the first tokens: what is before them is padding, and what is after them is the future. Here
    three of eight tokens are padding.

    Softmax has to give such a row weights that sum to 1, and there is nothing to give them to. With minus infinity it
    divides 0 by 0. With -1e9 all keys are equally bad, and it spreads the row evenly over all that is forbidden; where
    the two masks are added up, over what is forbidden once. In fp64 -1e9 plus a score still remembers the score, and
    the row attends as if there were no mask. `attend` gives such a row the output 0.
    """
    visible = ~(future(SHORT) | (torch.arange(SHORT) < PADDED))
    found = {name: padded_rows(lab.seed, dtype) for name, dtype in TYPES.items()}
    blind: dict[str, list[float | str]] = {}  # by the way to mask, in each type
    seeing: dict[str, float] = {}
    for ways in found.values():
        for way, weights in ways.items():
            if weights is None:
                blind.setdefault(way, []).append("refused")
                continue
            wrong = weights.double().masked_fill(visible, 0.0).sum(dim=-1)
            share = wrong[:PADDED].max().item()
            blind.setdefault(way, []).append("NaN" if math.isnan(share) else share)
            seeing[way] = max(seeing.get(way, 0.0), wrong[PADDED:].max().item())
    rows = [(way, *cells, seeing[way]) for way, cells in blind.items()]
    columns = ("masked by", *TYPES, "rows that see a key, all types")
    note = "The first columns are for the rows that see nothing: all of their weight is on what is forbidden, or none."
    lab.table("Weight on forbidden keys, largest of any row", columns, rows, note=note)
    spread, ours, kept = blind["filled with -1e9"][1], blind["attend"][1], seeing["filled with -1e9"]
    refusals = blind["filled with -1e9"].count("refused")
    lab.decide(
        "8a",
        Verdict.HOLDS_WHEN,
        f"In rows that see a key the weight on forbidden ones is {kept:g}. In a row that sees none it is {spread:g}, "
        "spread over padding and future; and fp16 scores cannot be filled with -1e9 at all.",
        Measurement(name="forbidden weight in rows that see a key", value=kept, low=0.0, high=0.0),
        Measurement(name="forbidden weight in a row that sees none, fp32", value=float(spread), low=0.999, high=1.001),
        Measurement(name="the same by `attend`", value=float(ours), low=0.0, high=0.0),
        Measurement(name="types that refuse to be filled, of four", value=refusals, low=1.0, high=1.0),
        condition="every row sees at least one key, and scores are not fp16",
    )


def how_such_rows_look(lab: Lab) -> None:
    """The same weights as pictures, queries from top to bottom. What is hatched has the weight 0. Below the third row
    all ways to mask agree; the three rows above are those of the padding, and only in the last picture they are empty.
    """
    found = {name: padded_rows(lab.seed, dtype) for name, dtype in TYPES.items()}
    shown = {
        "-1e9": found["fp32"]["filled with -1e9"],
        "-1e9, two masks": found["fp32"]["-1e9 added for each of two masks"],
        "-1e9 added, fp64": found["fp64"]["-1e9 added"],
        "attend": found["fp32"]["attend"],
    }
    heads = [AttentionMatrix.from_dense(weights.float()) for weights in shown.values() if weights is not None]
    title = "With -1e9, rows that may see nothing attend to what is forbidden"
    drawing = head_grid(heads, labels=list(shown), columns=4, title=title, limits=(0.0, 1.0))
    lab.figure("rows_that_see_nothing", drawing, "Eight tokens under a causal mask; the first three are padding.")


def lost_gradients(answer: Callable[[Tensor, Tensor, Tensor], Tensor], seed: int) -> list[float]:
    """The share of NaN in the gradients of queries, keys and values; rows that see no key do not count in the loss."""
    tokens = [part.requires_grad_() for part in random_tokens(seed, SHORT)]
    seeing = answer(*tokens)[..., PADDED:, :]
    return [slope.isnan().double().mean().item() for slope in torch.autograd.grad(seeing.square().sum(), tokens)]


def padded_answers() -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Attention of eight tokens of which the first three are padding, written out and by `attend`."""
    keep = torch.arange(SHORT) >= PADDED
    hidden, mask = future(SHORT) | ~keep, Causal() & Padding(keep=keep[None])
    return {
        "filled with minus infinity": lambda q, k, v: fill_infinity(q @ k.mT / WIDTH**0.5, hidden) @ v,
        "minus infinity added": lambda q, k, v: add_infinity(q @ k.mT / WIDTH**0.5, hidden) @ v,
        "attend": lambda q, k, v: attend(q, k, v, mask=mask),
    }


def whether_gradients_pass_a_mask(lab: Lab) -> None:
    """The derivative of a weight w with respect to its own score is w (1 - w), and with respect to the score of another
    key, whose weight is v, it is -w v. Where w is 0, both are 0: a hidden score learns nothing, and nothing is learned
    from it. This is looked at in four types: random numbers come back through the softmax as gradients, and what
    arrives at the hidden scores has to be exactly 0.

    It is a statement about rows that see something. In a row without any key the weights are NaN, and so is what comes
    back. Such rows are usually left out of the loss; that does not help, since 0 times NaN is NaN as well. The second
    table counts what of the gradients is lost even then.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    hidden, rows = future(LENGTH), []
    for name, dtype in TYPES.items():
        scores = torch.randn(LENGTH, LENGTH, generator=generator).to(dtype).requires_grad_()
        arriving = torch.randn(LENGTH, LENGTH, generator=generator).to(dtype)
        (slopes,) = torch.autograd.grad(fill_infinity(scores, hidden), scores, arriving)
        empty = torch.full((1, LENGTH), -math.inf, dtype=dtype, requires_grad=True)
        (nothing,) = torch.autograd.grad(empty.softmax(dim=-1), empty, arriving[:1])
        seen = slopes[~hidden][1:]  # the first row has one key, whose weight is 1 whatever its score
        largest, least = slopes[hidden].abs().max().item(), (seen != 0).double().mean().item()
        rows.append((name, largest, least, nothing.isnan().double().mean().item()))
    columns = (
        "type",
        "largest gradient at a hidden score",
        "share of seen scores with one",
        "NaN in a row without keys",
    )
    lab.table("Gradients that come back through a causal mask", columns, rows)
    lost = {name: lost_gradients(answer, lab.seed) for name, answer in padded_answers().items()}
    columns = ("masked by", "queries", "keys", "values")
    title = "Share of NaN in gradients: three rows see no key, and only the others count in the loss"
    lab.table(title, columns, [(name, *shares) for name, shares in lost.items()])
    passed, ours = max(row[1] for row in rows), max(lost["attend"])
    spoiled = min(values for name, (_, _, values) in lost.items() if name != "attend")
    lab.decide(
        "9",
        Verdict.HOLDS_WHEN,
        f"In all four types the largest gradient at a hidden score is {passed:g}. In a row without any key it is NaN. "
        f"Left out of the loss, such rows still turn {spoiled:.0%} of the gradients of values into NaN; by `attend` "
        f"{ours:.0%}.",
        Measurement(name="largest gradient at a hidden score", value=passed, low=0.0, high=0.0),
        Measurement(name="smallest share of seen scores with a gradient", value=min(row[2] for row in rows), low=0.9),
        Measurement(name="share of NaN in a row without keys", value=min(row[3] for row in rows), low=1.0, high=1.0),
        Measurement(name="share of NaN in the gradients of values", value=spoiled, low=1.0, high=1.0),
        Measurement(name="share of NaN in the gradients of `attend`", value=ours, low=0.0, high=0.0),
        condition="the row sees at least one key",
    )


PARTS = (
    what_a_causal_mask_leaves,
    whether_the_future_leaks,
    a_large_negative_number_instead,
    a_row_that_sees_nothing,
    how_such_rows_look,
    whether_gradients_pass_a_mask,
)
