"""Implement causal and padding masks

A model that predicts the next token must not attend to it. Query i may attend to keys 0 to i, including itself.

- `causal_mask(length)`: a (length, length) tensor to be added to scores: 0 if query i may attend to key j, else minus
  infinity. Rows are queries.
- `causal_weights(scores, is_real)`: `scores` has the shape (..., n, n). Return the weights: for each query, the softmax
  over its allowed keys, and exactly 0 for all others. `is_real` is None, or a boolean tensor (..., n) that is True for
  tokens and False for padding, which no query may attend to.

A query without any allowed key (with padding on the left) has a row of zeros, and gradients through it are zeros too.
The weights have the dtype of the scores, also fp16: its largest number is 65,504, and scores of -20,000 do occur. Do
not change the scores in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope.labs.exercise import Answer, WrongAnswer, expect_tensor, first_mismatch, format_index, standard_normal

STARTER = '''
import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    """Return (length, length): 0 if query i may attend to key j, else minus infinity."""
    raise NotImplementedError


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    """Return (..., n, n): the weights of each query over its allowed keys."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    length = scores.shape[-1]
    allowed = torch.ones(length, length, dtype=torch.bool).tril().expand(scores.shape)
    if is_real is not None:
        allowed = allowed & is_real.unsqueeze(-2)
    blind = ~allowed.any(dim=-1, keepdim=True)
    masked = scores.masked_fill(~allowed, float("-inf")).masked_fill(blind, 0.0)
    return masked.softmax(dim=-1).masked_fill(blind, 0.0)
"""

HINTS = (
    "Draw a 4 by 4 square on paper, one row per query, and cross out the future. Is the diagonal crossed out? "
    "`torch.triu` and `torch.tril` keep one side, and their argument `diagonal` says where it starts.",
    "Mask before the softmax, not after it: then the remaining weights sum to 1. Which score has the exponential 0 "
    "in every dtype, whatever the other scores are?",
    "A fully masked row has no softmax: 0 divided by 0. Replacing the NaN afterwards repairs the row, but not its "
    "gradient. Give such a row harmless scores before the softmax, and zeros after it.",
)

AFTERWARDS = (
    "Your answer also handles what often fails later: padding on the left, fp16, and gradients through fully masked "
    "rows."
)


def check(answer: Answer) -> None:
    """The mask; then weights, leaks, hostile scores, fp16 and padding, with gradients."""
    _check_mask(answer.function("causal_mask"))
    weigh = answer.function("causal_weights")
    for seed, shape in enumerate(((6, 6), (1, 1), (2, 3, 5, 5), (5, 5, 5))):
        _check_weights(weigh, standard_normal(*shape, seed=seed), None, f"random scores of shape {shape}")
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        _check_weights(weigh, standard_normal(4, 4, seed=9, dtype=dtype), None, f"random scores in {_name(dtype)}")
    _check_hostile(weigh)
    _check_padding(weigh)
    _check_gradient(weigh)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_mask(causal_mask: Callable[..., Any]) -> None:
    for length in (6, 1, 9):
        mask = expect_tensor(causal_mask(length), f"`causal_mask({length})`", (length, length))
        if mask.dtype == torch.bool:
            raise WrongAnswer(
                "not to be added", "The mask is True and False. The task asks for one that is added to scores."
            )
        if mask.isnan().any():
            row, column = mask.isnan().nonzero()[0].tolist()
            raise WrongAnswer(
                "NaN in the mask",
                f"Row {row}, column {column} of the mask is NaN. What is 0 times infinity? Fill in the infinity where "
                "it belongs, rather than multiply by it.",
            )
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        forbidden = mask < 0
        if length > 1 and torch.equal(forbidden, future.mT):
            raise WrongAnswer(
                "upside down",
                "Query 0 may attend to all keys, and the last query only to itself. Which of them comes later?",
            )
        if (mask.diagonal() != 0).any():
            raise WrongAnswer(
                "the diagonal is masked",
                "Query 0 may not attend to key 0, so to no key at all. May a token attend to itself? Where does your "
                "triangle begin?",
            )
        if (future & ~forbidden).any():
            row, column = (future & ~forbidden).nonzero()[0].tolist()
            raise WrongAnswer("the future leaks", f"Query {row} may attend to key {column}, which comes later.")
        if (forbidden & ~future).any() or (mask[~future] != 0).any():
            row, column = ((mask != 0) & ~future).nonzero()[0].tolist()
            raise WrongAnswer(
                "the past is masked", f"Query {row} meets {float(mask[row, column])} at key {column}, its past."
            )
        if (mask[future] != -math.inf).any():
            value = float(mask[future][0])
            raise WrongAnswer(
                "not minus infinity",
                f"What is forbidden gets {value:g}. Some dtypes have no such number, and scores that are that low "
                "themselves would be as good as forbidden. Which number is lower than every score, in every dtype?",
            )


def _expected(scores: Tensor, is_real: Tensor | None) -> Tensor:
    allowed = _allowed(scores, is_real)
    filled = scores.double().masked_fill(~allowed, -math.inf).masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return filled.softmax(-1) * allowed


def _allowed(scores: Tensor, is_real: Tensor | None) -> Tensor:
    allowed = torch.ones(scores.shape, dtype=torch.bool).tril()
    return allowed if is_real is None else allowed & is_real[..., None, :]


def _returned(weigh: Callable[..., Any], scores: Tensor, is_real: Tensor | None) -> Tensor:
    returned = weigh(scores) if is_real is None else weigh(scores, is_real)
    return expect_tensor(returned, "What `causal_weights` returns", tuple(scores.shape), scores.dtype)


def _check_weights(weigh: Callable[..., Any], scores: Tensor, is_real: Tensor | None, case: str) -> None:
    weights, allowed = _returned(weigh, scores, is_real), _allowed(scores, is_real)
    sees_nothing = ~allowed.any(-1)
    if weights.isnan().any():
        place = weights.isnan().nonzero()[0].tolist()
        asks = (
            "It is fully masked, so its softmax is undefined. The task says what its row should be."
            if sees_nothing[tuple(place[:-1])]
            else "A NaN comes of 0 divided by 0, of 0 times infinity, and of infinity less infinity. Print each step "
            "for this row: which of the three is it, and where does the 0 or the infinity come from?"
        )
        raise WrongAnswer(
            "NaN in a row", f"With {case}, query {format_index(place[:-1])} has NaN among its weights. {asks}"
        )
    if (weights[sees_nothing] != 0).any():
        place = ((weights != 0) & sees_nothing[..., None]).nonzero()[0].tolist()
        raise WrongAnswer(
            "something from nothing",
            f"With {case}, query {format_index(place[:-1])} is fully masked, and its row is "
            f"{float(weights[tuple(place)]):.4f} to key {place[-1]} all the same. If all scores of a row are equally "
            "low, what does the softmax see?",
        )
    _check_leaks(weights, allowed, scores, case)
    sums = weights.double().sum(-1)
    tolerance = 1e-5 if scores.dtype in (torch.float32, torch.float64) else 2e-2
    columns = weights.double().sum(-2)
    if weights.shape[-1] > 1 and first_mismatch(columns, torch.ones_like(columns), tolerance) is None:
        raise WrongAnswer(
            "softmax over the wrong axis",
            f"With {case}, the weights of query 0 sum to {float(sums.flatten()[0]):.4f}, and the columns sum to 1. "
            "Should the weights sum to 1 over the keys of a query, or over the queries of a key?",
        )
    if (place := first_mismatch(sums, (~sees_nothing).double(), tolerance)) is not None:
        if sums[place] == 0 and is_real is not None and not is_real[place]:
            raise WrongAnswer(
                "padding queries are masked",
                f"With {case}, query {format_index(place)} gives nothing to anybody. It is padding itself, and there "
                "are tokens before it. The task says that no query may attend to padding: does it say that padding "
                "queries attend to nothing?",
            )
        raise WrongAnswer(
            "rows do not sum to 1",
            f"With {case}, the weights of query {format_index(place)} sum to {float(sums[place]):.4f}. Something was "
            "removed after the softmax: is it masked before the softmax, or after?",
        )
    if (place := first_mismatch(weights, _expected(scores, is_real), tolerance)) is not None:
        raise WrongAnswer(
            "wrong weights",
            f"With {case}, weight {format_index(place)} is {float(weights[place]):.4f}. Nothing leaks, rows sum to 1, "
            "and yet it is not the softmax over the allowed keys. Is it over the keys, and are the allowed scores "
            "left as they are?",
        )


def _check_leaks(weights: Tensor, allowed: Tensor, scores: Tensor, case: str) -> None:
    future = torch.ones(scores.shape, dtype=torch.bool).triu(1)
    if ((weights != 0) & future).any():
        place = tuple(((weights != 0) & future).nonzero()[0].tolist())
        raise WrongAnswer(
            "the future leaks",
            f"With {case}, query {format_index(place[:-1])} gives {float(weights[place]):.3g} to key {place[-1]}, "
            f"which comes later. Its own scores up to there: {_few(scores[place[:-1]], place[-2])}. Exactly 0 is "
            "asked for: is what you put in place of the forbidden score lower than these in every dtype?",
        )
    if ((weights != 0) & ~allowed).any():
        place = tuple(((weights != 0) & ~allowed).nonzero()[0].tolist())
        raise WrongAnswer(
            "padding is attended to",
            f"With {case}, query {format_index(place[:-1])} gives {float(weights[place]):.3g} to key {place[-1]}, "
            "which is padding. On which axis does `is_real` have to lie to speak about keys?",
        )


def _few(row: Tensor, last: int) -> str:
    return ", ".join(f"{float(value):.4g}" for value in row[: last + 1])


def _check_hostile(weigh: Callable[..., Any]) -> None:
    """Scores that are low where it is allowed, or high where it is not."""
    high_future = torch.where(torch.ones(4, 4, dtype=torch.bool).triu(1), 300.0, standard_normal(4, 4, seed=20))
    _check_weights(weigh, high_future, None, "scores of 300 in the future and small ones before it")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        low = torch.full((4, 4), -20_000.0, dtype=dtype)
        _check_weights(weigh, low, None, f"scores of -20,000 everywhere, in {_name(dtype)}")
    _check_weights(weigh, torch.full((3, 3), -3e9), None, "scores of -3,000,000,000 everywhere, in float32")


def _check_padding(weigh: Callable[..., Any]) -> None:
    for dtype in (torch.float32, torch.float16):
        scores = standard_normal(3, 5, 5, seed=30, dtype=dtype)
        is_real = torch.tensor([[True] * 5, [True, True, True, False, False], [True, False, True, True, True]])
        _check_weights(weigh, scores, is_real, f"padding at the end and in the middle, in {_name(dtype)}")
        is_real = torch.tensor([[False, False, True, True, True], [False] * 5, [True] * 5])
        _check_weights(weigh, scores, is_real, f"padding in front, in {_name(dtype)}")


def _check_gradient(weigh: Callable[..., Any]) -> None:
    scores, is_real = standard_normal(5, 5, seed=40).requires_grad_(), torch.tensor([False, False, True, True, True])
    upstream = standard_normal(5, 5, seed=41)
    weights = _returned(weigh, scores, is_real)
    if not weights.requires_grad:
        raise WrongAnswer(
            "no gradient", "The weights are right, and no gradient comes back to the scores: is something detached?"
        )
    (gradient,) = torch.autograd.grad((weights * upstream).sum(), scores)
    if not gradient.isfinite().all():
        row = (~gradient.isfinite()).any(-1).nonzero()[0].item()
        raise WrongAnswer(
            "NaN in the gradient",
            f"With padding in front the weights are right, and the gradient of the scores of query {row} is NaN: one "
            "step of training, and every parameter is. A NaN that is replaced after the softmax has still been there "
            "on the way back. Can it be kept from arising?",
        )
    twin = scores.detach().requires_grad_()
    (expected,) = torch.autograd.grad((_expected(twin, is_real) * upstream).sum(), twin)
    if (place := first_mismatch(gradient, expected, 1e-5)) is not None:
        raise WrongAnswer(
            "wrong gradient",
            f"The weights are right, and the gradient of score {format_index(place)} is {float(gradient[place]):.4f}. "
            "Is something detached on the way?",
        )
