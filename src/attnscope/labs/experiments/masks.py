"""Attention masks

This lab shows you what causal and padding masks guarantee in each dtype, why -1e9 is not a safe replacement for
minus infinity, and what happens to a row in which every key is masked.

A mask defines which keys a query may attend to. A causal mask hides later tokens, so that a model cannot read the token
that it has to predict. A padding mask hides the tokens that fill up a batch. Both are applied to the scores before the
softmax: a score of minus infinity has the exponential 0, and so the weight 0.

Many programs use a large negative number instead. Whether this is equivalent depends on the dtype, and on fully masked
rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnscope import AttentionMatrix, Causal, Padding, attend
from attnscope.figures import head_grid
from attnscope.labs import Lab, Measurement, Verdict

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = ("reference", "fused", "streaming")
BILLION = -1e9
LENGTH, WIDTH = 32, 16
SHORT, PADDED = 8, 3
"""Length of the padded sequence, and how many of its tokens are padding."""


def future(length: int) -> Tensor:
    """Return a mask (queries, keys) that is True if the key is later than the query.

    >>> future(2).tolist()
    [[False, True], [False, False]]
    """
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def fill_infinity(scores: Tensor, hidden: Tensor) -> Tensor:
    """Return the weights with masked scores replaced by minus infinity."""
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1)


def random_tokens(seed: int, length: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    """Return random queries, keys and values (batch, heads, positions, dimension) in fp32."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 1, length, WIDTH, generator=generator) for _ in range(3))
    return query, key, value


def weights_under_a_causal_mask(lab: Lab) -> None:
    """Three statements about the weights under a causal mask: they are exactly 0 above the diagonal, every row sums to
    1, and the first position attends only to itself. The lab checks them in four dtypes, for a softmax of scores filled
    with minus infinity and for each backend of `attend`. A backend that never stores the weights returns them as its
    output if the values are the identity matrix.

    The comparison with 0 and 1 is exact. A sum of rounded weights is not exactly 1; its error is given in epsilons, the
    distance from 1 to the next number of the dtype.
    """
    length = lab.choose(small=64, full=512)
    query, key, _ = random_tokens(lab.seed, length)
    hidden, rows = future(length), []
    for name, dtype in DTYPES.items():
        one, other, identity = query.to(dtype), key.to(dtype), torch.eye(length, dtype=dtype)[None, None]
        found = {"softmax": fill_infinity(one @ other.mT / WIDTH**0.5, hidden)}
        for backend in BACKENDS:
            found[backend] = attend(one, other, identity, mask=Causal(), backend=backend)
        for method, weights in found.items():
            weights = weights[0, 0].double()
            sums = (weights.sum(dim=-1) - 1).abs().max().item() / torch.finfo(dtype).eps
            rows.append((name, method, weights[hidden].abs().max().item(), weights[0, 0].item(), sums))
    columns = ("dtype", "computed by", "largest masked weight", "first weight", "error of the sum, in epsilons")
    lab.table(f"Weights of {length} tokens under a causal mask", columns, rows)
    leaked, off = max(row[2] for row in rows), max(row[4] for row in rows)
    lab.decide(
        "7",
        Verdict.HOLDS,
        f"In all four dtypes and with every backend, the largest masked weight is {leaked:g} and the first one is 1; "
        f"row sums differ from 1 by at most {off:.1f} epsilons.",
        Measurement(name="largest masked weight", value=leaked, low=0.0, high=0.0),
        Measurement(name="smallest first weight", value=min(row[3] for row in rows), low=1.0, high=1.0),
        Measurement(name="error of a row sum, in epsilons", value=off, high=lab.choose(small=8.0, full=32.0)),
    )


def information_leak(answer: Callable[[Tensor, Tensor, Tensor], Tensor], seed: int) -> tuple[float | str, float, int]:
    """Measure how the first half of the outputs depends on the second half of the input.

    Return the largest gradient, the largest change of the outputs when the second half is replaced, and the number of
    non-finite rows when the last value is infinite.
    """
    half = LENGTH // 2
    tokens, others = tuple(part.requires_grad_() for part in random_tokens(seed)), random_tokens(seed + 1)
    query, key, value = tokens
    before = answer(query, key, value)[..., :half, :]
    gradients = torch.cat(torch.autograd.grad(before.square().sum(), (key, value)), dim=-1)
    largest = gradients[..., half:, :].abs().max().item()
    with torch.no_grad():
        later = [
            torch.cat([old[..., :half, :], new[..., half:, :]], -2) for old, new in zip(tokens, others, strict=True)
        ]
        moved = (answer(*later)[..., :half, :] - before).abs().max().item()
        endless = value.clone()
        endless[..., -1, :] = math.inf
        broken = ~answer(query, key, endless)[..., :half, :].isfinite()
    return "NaN" if math.isnan(largest) else largest, moved, int(broken.any(dim=-1).sum())


def dense_attention(hidden: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return dense attention with a mask in which True hides."""
    return lambda query, key, value: fill_infinity(query @ key.mT / WIDTH**0.5, hidden) @ value


def information_from_later_tokens(lab: Lab) -> None:
    """A weight of 0 is necessary, but what reaches the output matters. The lab measures in two ways how the first half
    of the outputs depends on the second half of the input: by the gradient with respect to later keys and values, and
    by the change of the outputs when all later tokens are replaced. Both must be 0.

    Two deliberate mistakes show that the test can fail. A triangle that starts one position too late shows every token
    its successor. And a boolean mask has two conventions: in some functions of torch True hides, in others True shows.
    With the wrong one, every query attends only to the future, and the last one to nothing, which turns all gradients
    into NaN. Therefore `attend` does not accept a bare boolean tensor.

    The last column shows a limit of masking: 0 times infinity is NaN. Padding must be finite even if it is masked.
    """
    methods: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "no mask": dense_attention(torch.zeros(LENGTH, LENGTH, dtype=torch.bool)),
        "causal": dense_attention(future(LENGTH)),
        "causal, one position too late": dense_attention(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2)),
        "causal, True and False swapped": dense_attention(~future(LENGTH)),
    }
    for backend in BACKENDS:
        methods[f"attend, {backend}"] = lambda query, key, value, backend=backend: attend(
            query, key, value, mask=Causal(), backend=backend
        )
    rows = [(name, *information_leak(answer, lab.seed)) for name, answer in methods.items()]
    columns = ("mask", "largest gradient", "change of the outputs", "non-finite rows with an infinite last value")
    lab.table(f"Dependence of {LENGTH // 2} outputs on the {LENGTH // 2} tokens after them", columns, rows)


def add_billion(scores: Tensor, hidden: Tensor) -> Tensor:
    """Return the weights with -1e9 added to masked scores."""
    return (scores + hidden.to(scores.dtype) * BILLION).softmax(dim=-1)


def fill_billion(scores: Tensor, hidden: Tensor) -> Tensor | None:
    """Return the weights with masked scores replaced by -1e9, or None if torch raises an error."""
    try:
        return scores.masked_fill(hidden, BILLION).softmax(dim=-1)
    except RuntimeError:  # the dtype has no such number
        return None


def underflow_gap(dtype: torch.dtype) -> float:
    """Return how far a score must be below another one for its weight to be exactly 0, by bisection."""
    some, none = 0.0, 1_000.0
    for _ in range(40):
        middle = (some + none) / 2
        weight = torch.tensor([0.0, -middle], dtype=dtype).softmax(dim=-1)[1].item()
        some, none = (middle, none) if weight > 0 else (some, middle)
    return none


def minus_one_billion_instead_of_infinity(lab: Lab) -> None:
    """One text masks with -1e9. Another warns that in fp16 this does not become an exact 0 after the softmax. The
    opposite is true: the fewer bits a dtype has, the sooner a weight is rounded to 0. In fp16 a score about 17 below
    the largest is enough, in fp32 about 100.

    But fp16 cannot represent -1e9; its smallest number is -65,504. Filling scores with -1e9 raises an error in torch.
    In arithmetic, -1e9 becomes minus infinity, and masks as such.
    """
    query, key, _ = random_tokens(lab.seed)
    rows, hidden = [], future(LENGTH)
    for name, dtype in DTYPES.items():
        scores = (query.to(dtype) @ key.to(dtype).mT / WIDTH**0.5)[0, 0]
        filled, added = fill_billion(scores, hidden), add_billion(scores, hidden)
        largest = "error" if filled is None else filled[hidden].max().item()
        becomes = f"{torch.tensor(BILLION, dtype=dtype).item():.4g}"
        rows.append((name, becomes, largest, added[hidden].max().item(), underflow_gap(dtype)))
    columns = ("dtype", "-1e9 becomes", "masked weight, filled", "masked weight, added", "gap for a weight of 0")
    lab.table("Masking with -1e9, in rows with an allowed key", columns, rows)
    half = rows[-1]
    lab.decide(
        "8b",
        Verdict.DOES_NOT_HOLD,
        f"In fp16 -1e9 becomes {half[1]}, and the largest masked weight is {half[3]:g}: a score {half[4]:.1f} below "
        "the largest is enough. What fails is filling, which raises an error in torch.",
        Measurement(name="largest masked weight in fp16, -1e9 added", value=half[3], low=0.0, high=0.0),
        Measurement(name="gap for a weight of 0 in fp16", value=half[4], low=16.0, high=18.0),
        Measurement(name="gap for a weight of 0 in fp32", value=rows[1][4], low=80.0, high=110.0),
    )


def add_infinity(scores: Tensor, hidden: Tensor) -> Tensor:
    """Return the weights with minus infinity added to masked scores."""
    return (scores + torch.zeros_like(scores).masked_fill(hidden, -math.inf)).softmax(dim=-1)


def add_billion_twice(scores: Tensor, hidden: Tensor) -> Tensor:
    """Return the weights with -1e9 added for the causal mask, and again for padding, as if two masks were added."""
    later = future(len(scores))
    padding = hidden[-1].expand_as(hidden)  # the last row allows all keys but the padding
    return (scores + (later.to(scores.dtype) + padding.to(scores.dtype)) * BILLION).softmax(dim=-1)


def fill_smallest(scores: Tensor, hidden: Tensor) -> Tensor:
    """Return the weights with masked scores replaced by the smallest number of the dtype."""
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1)


def weights_with_padding(seed: int, dtype: torch.dtype) -> dict[str, Tensor | None]:
    """Return the weights of eight tokens, the first three of them padding, by each method; None is an error."""
    query, key, _ = (tokens.to(dtype) for tokens in random_tokens(seed, SHORT))
    hidden = future(SHORT) | (torch.arange(SHORT) < PADDED)
    scores = (query @ key.mT / WIDTH**0.5)[0, 0]
    found = {
        "filled with minus infinity": fill_infinity(scores, hidden),
        "minus infinity added": add_infinity(scores, hidden),
        "filled with -1e9": fill_billion(scores, hidden),
        "-1e9 added": add_billion(scores, hidden),
        "-1e9 added for each of two masks": add_billion_twice(scores, hidden),
        "filled with the smallest number of the dtype": fill_smallest(scores, hidden),
    }
    mask = Causal() & Padding(keep=(torch.arange(SHORT) >= PADDED)[None])
    identity = torch.eye(SHORT, dtype=dtype)[None, None]
    return found | {"attend": attend(query, key, identity, mask=mask)[0, 0]}


def fully_masked_rows(lab: Lab) -> None:
    """Sequences of different lengths are padded to fit into one batch; for generation, on the left. Then the mask hides
    everything from the first tokens: before them is padding, after them is the future. Here three of eight tokens are
    padding.

    Softmax must give such a row weights that sum to 1, although no key is allowed. With minus infinity it divides 0 by
    0. With -1e9 all keys have the same score, and the row spreads evenly over all masked keys; if two masks are added,
    over the keys masked once. In fp64, -1e9 plus a score still contains the score, and the row attends as if there were
    no mask. `attend` returns 0 for such a row.
    """
    visible = ~(future(SHORT) | (torch.arange(SHORT) < PADDED))
    found = {name: weights_with_padding(lab.seed, dtype) for name, dtype in DTYPES.items()}
    fully_masked: dict[str, list[float | str]] = {}  # by method, in each dtype
    allowed_rows: dict[str, float] = {}
    for methods in found.values():
        for method, weights in methods.items():
            if weights is None:
                fully_masked.setdefault(method, []).append("error")
                continue
            wrong = weights.double().masked_fill(visible, 0.0).sum(dim=-1)
            share = wrong[:PADDED].max().item()
            fully_masked.setdefault(method, []).append("NaN" if math.isnan(share) else share)
            allowed_rows[method] = max(allowed_rows.get(method, 0.0), wrong[PADDED:].max().item())
    rows = [(method, *cells, allowed_rows[method]) for method, cells in fully_masked.items()]
    columns = ("method", *DTYPES, "rows with an allowed key, all dtypes")
    note = "The first columns are for fully masked rows: all of their weight is on masked keys, or none."
    lab.table("Largest weight of a row on masked keys", columns, rows, note=note)
    spread, ours, kept = (
        fully_masked["filled with -1e9"][1],
        fully_masked["attend"][1],
        allowed_rows["filled with -1e9"],
    )
    num_errors = fully_masked["filled with -1e9"].count("error")
    lab.decide(
        "8a",
        Verdict.HOLDS_WHEN,
        f"In rows with an allowed key, the weight on masked keys is {kept:g}. In a fully masked row it is {spread:g}, "
        "spread over padding and future. fp16 scores cannot be filled with -1e9 at all.",
        Measurement(name="masked weight in rows with an allowed key", value=kept, low=0.0, high=0.0),
        Measurement(name="masked weight in a fully masked row, fp32", value=float(spread), low=0.999, high=1.001),
        Measurement(name="the same with `attend`", value=float(ours), low=0.0, high=0.0),
        Measurement(name="dtypes that cannot be filled, of four", value=num_errors, low=1.0, high=1.0),
        condition="every row has at least one allowed key, and scores are not fp16",
    )


def attention_patterns_of_fully_masked_rows(lab: Lab) -> None:
    """The same weights as pictures, with queries from top to bottom. Hatched cells have the weight 0. From the fourth
    row on, all methods agree. The first three rows are padding; only `attend` leaves them empty.
    """
    found = {name: weights_with_padding(lab.seed, dtype) for name, dtype in DTYPES.items()}
    shown = {
        "-1e9": found["fp32"]["filled with -1e9"],
        "-1e9, two masks": found["fp32"]["-1e9 added for each of two masks"],
        "-1e9 added, fp64": found["fp64"]["-1e9 added"],
        "attend": found["fp32"]["attend"],
    }
    heads = [AttentionMatrix.from_dense(weights.float()) for weights in shown.values() if weights is not None]
    title = "With -1e9, fully masked rows attend to masked keys"
    drawing = head_grid(heads, labels=list(shown), columns=4, title=title, limits=(0.0, 1.0))
    lab.figure("fully_masked_rows", drawing, "Eight tokens under a causal mask; the first three are padding.")


def nan_in_gradients(answer: Callable[[Tensor, Tensor, Tensor], Tensor], seed: int) -> list[float]:
    """Return the share of NaN in the gradients of queries, keys and values; fully masked rows are not in the loss."""
    tokens = [part.requires_grad_() for part in random_tokens(seed, SHORT)]
    allowed_rows = answer(*tokens)[..., PADDED:, :]
    return [slope.isnan().double().mean().item() for slope in torch.autograd.grad(allowed_rows.square().sum(), tokens)]


def attention_with_padding() -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return attention of eight tokens, the first three of them padding: dense, and with `attend`."""
    keep = torch.arange(SHORT) >= PADDED
    hidden, mask = future(SHORT) | ~keep, Causal() & Padding(keep=keep[None])
    return {
        "filled with minus infinity": lambda q, k, v: fill_infinity(q @ k.mT / WIDTH**0.5, hidden) @ v,
        "minus infinity added": lambda q, k, v: add_infinity(q @ k.mT / WIDTH**0.5, hidden) @ v,
        "attend": lambda q, k, v: attend(q, k, v, mask=mask),
    }


def gradients_through_a_mask(lab: Lab) -> None:
    """The derivative of a weight w with respect to its own score is w (1 - w); with respect to the score of another key
    with weight v, it is -w v. If w is 0, both are 0: a masked score gets no gradient. The lab checks this in four
    dtypes: it sends random gradients back through the softmax, and those at masked scores must be exactly 0.

    This holds for rows with at least one key. In a fully masked row, the weights are NaN, and so are the gradients.
    Leaving such rows out of the loss does not help, because 0 times NaN is NaN. The second table counts the gradients
    that are lost.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    hidden, rows = future(LENGTH), []
    for name, dtype in DTYPES.items():
        scores = torch.randn(LENGTH, LENGTH, generator=generator).to(dtype).requires_grad_()
        arriving = torch.randn(LENGTH, LENGTH, generator=generator).to(dtype)
        (gradients,) = torch.autograd.grad(fill_infinity(scores, hidden), scores, arriving)
        empty = torch.full((1, LENGTH), -math.inf, dtype=dtype, requires_grad=True)
        (nothing,) = torch.autograd.grad(empty.softmax(dim=-1), empty, arriving[:1])
        seen = gradients[~hidden][1:]  # the first row has one key, whose weight is 1 whatever its score
        largest_masked, share = gradients[hidden].abs().max().item(), (seen != 0).double().mean().item()
        rows.append((name, largest_masked, share, nothing.isnan().double().mean().item()))
    columns = (
        "dtype",
        "largest gradient at a masked score",
        "share of allowed scores with a gradient",
        "NaN in a fully masked row",
    )
    lab.table("Gradients through a causal mask", columns, rows)
    lost = {name: nan_in_gradients(answer, lab.seed) for name, answer in attention_with_padding().items()}
    columns = ("method", "queries", "keys", "values")
    title = "Share of NaN in gradients with three fully masked rows, which are not in the loss"
    lab.table(title, columns, [(name, *shares) for name, shares in lost.items()])
    passed, ours = max(row[1] for row in rows), max(lost["attend"])
    spoiled = min(values for name, (_, _, values) in lost.items() if name != "attend")
    lab.decide(
        "9",
        Verdict.HOLDS_WHEN,
        f"In all four dtypes the largest gradient at a masked score is {passed:g}. In a fully masked row it is NaN. "
        f"Even if such rows are not in the loss, {spoiled:.0%} of the gradients of values are NaN; with `attend`, "
        f"{ours:.0%}.",
        Measurement(name="largest gradient at a masked score", value=passed, low=0.0, high=0.0),
        Measurement(
            name="smallest share of allowed scores with a gradient", value=min(row[2] for row in rows), low=0.9
        ),
        Measurement(name="share of NaN in a fully masked row", value=min(row[3] for row in rows), low=1.0, high=1.0),
        Measurement(name="share of NaN in the gradients of values", value=spoiled, low=1.0, high=1.0),
        Measurement(name="share of NaN in the gradients of `attend`", value=ours, low=0.0, high=0.0),
        condition="the row has at least one allowed key",
    )


PARTS = (
    weights_under_a_causal_mask,
    information_from_later_tokens,
    minus_one_billion_instead_of_infinity,
    fully_masked_rows,
    attention_patterns_of_fully_masked_rows,
    gradients_through_a_mask,
)
