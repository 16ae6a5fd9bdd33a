"""Implement scaled dot-product attention

Write `attend(q, k, v)`. It returns a tuple: the output and the attention weights.

- `q` contains n queries and `k` contains m keys of dimension d; `v` contains one value of dimension e per key. So the
  last two dimensions are (n, d), (m, d) and (m, e). There may be any number of leading dimensions (batch, heads), the
  same for all three.
- The score of a query and a key is their dot product, divided by the square root of d.
- The weights of a query are the softmax of its scores over all keys, of shape (..., n, m).
- The output of a query is the weighted sum of the values, of shape (..., n, e).

The results have the dtype of the inputs, also fp64 and bf16. Use torch, but not
`torch.nn.functional.scaled_dot_product_attention`, which does not return the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_tensor,
    expect_tuple,
    first_mismatch,
    format_index,
    standard_normal,
)

STARTER = '''
import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (..., n, e) and the weights (..., n, m)."""
    raise NotImplementedError
'''

SOLUTION = """
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, dim=-1)
    return weights @ v, weights
"""

HINTS = (
    "Write down the shapes first. Which product of q (n, d) and k (m, d) has the shape (n, m)? Along which dimension "
    "are the scores of one query?",
    "Count dimensions from the end: the last is -1, the one before it -2. The code then works for two dimensions and "
    "for five.",
    "Three steps, one line each: scores, weights, output. Print the row sums of the weights. Then try one query and "
    "two keys, one of them the query times a hundred: what should the weights be, and what are they?",
)

CASES = ((5, 7, 4, 3), (6, 6, 16, 6), (1, 9, 64, 2))
"""Queries, keys, their width, the width of values."""


def check(answer: Answer) -> None:
    """Shapes, softmax, scale and mean; then more axes, large scores, other dtypes and gradients."""
    attend = answer.function("attend")
    for seed, (queries, keys, width, value) in enumerate(CASES):
        given = _inputs((), queries, keys, width, value, seed)
        _check_weights(attend, *given)
    _check_weights(attend, *_inputs((2, 3), 5, 7, 4, 3, 10))
    _check_weights(attend, *_inputs((4,), 4, 4, 4, 4, 11))
    _check_large_scores(attend)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 2e-2)):
        _check_dtype(attend, dtype, tolerance)
    _check_gradients(attend)


def _inputs(leading: tuple[int, ...], queries: int, keys: int, width: int, value: int, seed: int) -> tuple[Tensor, ...]:
    shapes = ((queries, width), (keys, width), (keys, value))
    return tuple(standard_normal(*leading, *shape, seed=100 * seed + place) for place, shape in enumerate(shapes))


def _expected(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = q.double(), k.double(), v.double()
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return weights @ v, weights


def _returned(attend: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    output, weights = expect_tuple(attend(q, k, v), "What `attend` returns", 2)
    wanted_output, wanted_weights = (*q.shape[:-1], v.shape[-1]), (*q.shape[:-1], k.shape[-2])
    is_swapped = isinstance(output, Tensor) and isinstance(weights, Tensor) and wanted_output != wanted_weights
    if is_swapped and (tuple(output.shape), tuple(weights.shape)) == (wanted_weights, wanted_output):
        raise WrongAnswer(
            "output and weights swapped",
            f"The first thing has shape {tuple(output.shape)} and the second {tuple(weights.shape)}: each is what the "
            "other should be. In which order does the task name them?",
        )
    return expect_tensor(output, "The output", wanted_output), expect_tensor(weights, "The weights", wanted_weights)


def _check_weights(attend: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor) -> None:
    output, weights = _returned(attend, q, k, v)
    case = f"With q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)}"
    if not weights.isfinite().all() or not output.isfinite().all():
        raise WrongAnswer(
            "NaN in a row", f"{case}, standard normal numbers, there is a NaN or an infinity in the result."
        )
    _check_sums(weights, case)
    expected = _expected(q, k, v)[1]
    if (place := first_mismatch(weights, expected, 1e-5)) is not None:
        _explain_weights(attend, (q, k, v), place, case)
    if (place := first_mismatch(output, weights.double() @ v.double(), 1e-5)) is not None:
        raise WrongAnswer(
            "wrong mean of values",
            f"{case}, the weights are right, and the output is not their mean of the values: entry "
            f"{format_index(place)} is {float(output[place]):.4f}, and the values there go from "
            f"{float(v[..., place[-1]].min()):.4f} to {float(v[..., place[-1]].max()):.4f}. Work out one entry by "
            "hand: one row of weights, one column of `v`.",
        )


def _check_sums(weights: Tensor, case: str) -> None:
    sums = weights.double().sum(-1)
    if (place := first_mismatch(sums, torch.ones_like(sums), 1e-4)) is None:
        return
    for axis in range(weights.dim() - 1):
        others = weights.double().sum(axis)
        if first_mismatch(others, torch.ones_like(others), 1e-4) is None:
            raise WrongAnswer(
                "softmax over the wrong axis",
                f"{case}, the weights of query {format_index(place)} sum to {float(sums[place]):.4f}. They do sum to "
                f"1 along axis {axis} of {weights.dim()}: is that the axis on which the keys of one query lie?",
            )
    raise WrongAnswer(
        "rows do not sum to 1",
        f"{case}, the weights of query {format_index(place)} sum to {float(sums[place]):.4f}. The weights "
        "of a query must sum to 1, whatever its scores are: which operation guarantees that?",
    )


def _factor(q: Tensor, k: Tensor, weights: Tensor) -> float | None:
    """The number whose product with the dot products the weights are the softmax of, if there is one."""
    scores = (q.double() @ k.double().mT).flatten(0, -2)
    logs = weights.double().flatten(0, -2).log()
    scores, logs = scores - scores.mean(-1, keepdim=True), logs - logs.mean(-1, keepdim=True)
    factor = float((scores * logs).sum() / (scores * scores).sum())
    return factor if first_mismatch(logs, factor * scores, 1e-3) is None else None


def _explain_weights(attend: Callable[..., Any], given: Sequence[Tensor], place: tuple[int, ...], case: str) -> None:
    q, k, _ = given
    weights = _returned(attend, *given)[1]
    if (factor := _factor(q, k, weights)) is not None:
        wide = _inputs((), q.shape[-2], k.shape[-2], 4 * q.shape[-1], 3, 50)
        there = _factor(wide[0], wide[1], _returned(attend, *wide)[1])
        raise WrongAnswer(
            "wrong scale",
            f"{case}, your weights are exactly the softmax of the dot products times {factor:.4f}; with queries and "
            f"keys four times as wide, times {there or math.nan:.4f}. Dot products of standard normal vectors that are "
            "four times as wide spread twice as far. Is the spread the same after your factor? Which size does it "
            "depend on?",
        )
    raise WrongAnswer(
        "wrong weights",
        f"{case}, rows sum to 1, and yet weight {format_index(place)} is {float(weights[place]):.4f}, which is no "
        "softmax of scaled dot products. Look at the scores before the softmax: work out one of them by hand.",
    )


def _check_large_scores(attend: Callable[..., Any]) -> None:
    """A score of 500 overflows an exponential in fp32, and is an ordinary score."""
    q, k, v = _inputs((), 3, 4, 8, 2, 20)
    q = q * 400
    output, weights = _returned(attend, q, k, v)
    if not weights.isfinite().all() or not output.isfinite().all():
        row = int((~weights.isfinite()).any(-1).nonzero()[0]) if not weights.isfinite().all() else 0
        largest = float((q[row] @ k.mT).max() / math.sqrt(8))
        raise WrongAnswer(
            "NaN in a row",
            f"With large queries (query {row} has a score of {largest:.0f}) the weights of that query are "
            f"{[float(weight) for weight in weights[row]]}. What is the exponential of {largest:.0f} in fp32? Weights "
            "depend on the differences of scores alone: which number may you take off all scores of a row first?",
        )
    if (place := first_mismatch(weights, _expected(q, k, v)[1], 1e-4)) is not None:
        raise WrongAnswer(
            "wrong weights",
            f"With large queries weight {format_index(place)} is {float(weights[place]):.4f}: right for small scores, "
            "and wrong for large ones. Is something added, clamped or rounded on the way?",
        )


def _check_dtype(attend: Callable[..., Any], dtype: torch.dtype, tolerance: float) -> None:
    q, k, v = (given.to(dtype) for given in _inputs((2,), 5, 7, 4, 3, 30))
    output, weights = _returned(attend, q, k, v)
    expect_tensor(output, "The output", tuple(output.shape), dtype)
    expect_tensor(weights, "The weights", tuple(weights.shape), dtype)
    expected = _expected(q, k, v)
    for name, actual, wanted in (("weight", weights, expected[1]), ("output entry", output, expected[0])):
        if (place := first_mismatch(actual, wanted, tolerance)) is not None:
            raise WrongAnswer(
                "digits are lost",
                f"In {str(dtype).removeprefix('torch.')} {name} {format_index(place)} is {float(actual[place])!r}: "
                "right in its first digits only. Is anything on the way turned into a dtype with fewer of them?",
            )


def _check_gradients(attend: Callable[..., Any]) -> None:
    given = [value.requires_grad_() for value in _inputs((), 3, 4, 5, 2, 40)]
    output, _ = _returned(attend, *given)
    gradients = (
        torch.autograd.grad(output.square().sum(), given, allow_unused=True)
        if output.requires_grad
        else (None,) * len(given)
    )
    if missing := [name for name, gradient in zip("qkv", gradients, strict=True) if gradient is None]:
        raise WrongAnswer(
            "no gradient",
            f"The numbers are right, and no gradient comes back to {', '.join(missing)}: nothing could learn through "
            "this. Where do tensors become plain numbers, or new tensors that do not know where they come from?",
        )
