"""Derive the gradients through masked attention

Masked scores become minus infinity, and their softmax weights 0. Which gradients reach them in training? Derive them
without autograd.

- `score_gradient(weights, upstream)`: `weights` (..., n, m) are the softmax of some scores, and `upstream` is the
  gradient of a loss with respect to these weights. Return the gradient with respect to the scores.
- `scores_can_learn(allowed)`: `allowed` (n, m) is True if query i may attend to key j. Return a boolean tensor (n, m):
  True if the gradient of the score can differ from 0, for some scores and some upstream gradient.
- `values_can_learn(allowed)`: True if the value of key j can get a gradient from the output of query i, which is the
  weighted sum of the values.

A query without any allowed key has only weights of 0.
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


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    """Return (..., n, m): the gradient with respect to the scores, of which `weights` are the softmax."""
    raise NotImplementedError


def scores_can_learn(allowed: Tensor) -> Tensor:
    """Return (n, m) bool: where the gradient of a score can differ from 0."""
    raise NotImplementedError


def values_can_learn(allowed: Tensor) -> Tensor:
    """Return (n, m) bool: where the value of key j can get a gradient from the output of query i."""
    raise NotImplementedError
'''

SOLUTION = """
from torch import Tensor


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    mean = (weights * upstream).sum(dim=-1, keepdim=True)
    return weights * (upstream - mean)


def scores_can_learn(allowed: Tensor) -> Tensor:
    return allowed & (allowed.sum(dim=-1, keepdim=True) > 1)


def values_can_learn(allowed: Tensor) -> Tensor:
    return allowed.clone()
"""

HINTS = (
    "Raise one score a little: its own weight grows. What happens to the other weights of the same row, which must "
    "sum to 1? The gradient of a score depends on all of them.",
    "Write the derivative of weight j with respect to score k, for j = k and for j != k. Multiply by the upstream "
    "gradient and sum over j: the result is a weight times the difference of one upstream number and a mean.",
    "For the last two: take a row with one allowed key. How much can its weight change? How much of its value "
    "reaches the output?",
)

AFTERWARDS = (
    "So masked scores get no gradient, without any special case: their weight is a factor of it. The score of the "
    "first token gets no gradient either: with one allowed key, its weight is always 1. Its value does get one."
)


def check(answer: Answer) -> None:
    """The gradient against autograd, with and without masks; then the two predictions."""
    gradient = answer.function("score_gradient")
    for seed, (shape, dtype) in enumerate((((4, 6), torch.float32), ((2, 3, 5, 5), torch.float64))):
        _check_gradient(gradient, standard_normal(*shape, seed=seed, dtype=dtype), None)
    for seed, allowed in enumerate(_masks()):
        _check_gradient(gradient, standard_normal(*allowed.shape, seed=10 + seed, dtype=torch.float64), allowed)
    for allowed in _masks():
        _check_scores(answer.function("scores_can_learn"), allowed)
    for allowed in _masks():
        _check_values(answer.function("values_can_learn"), allowed)


def _masks() -> tuple[Tensor, ...]:
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    scattered = standard_normal(6, 4, seed=3) > 0.3
    scattered[2] = torch.tensor([False, False, True, False])
    scattered[4] = False
    window = causal & torch.ones(5, 5, dtype=torch.bool).triu(-1)
    return torch.ones(3, 4, dtype=torch.bool), causal, window, scattered, torch.eye(3, dtype=torch.bool)


def _weights(scores: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is None:
        return scores.softmax(-1)
    harmless = scores.masked_fill(~allowed, -math.inf).masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return harmless.softmax(-1) * allowed


def _check_gradient(gradient: Callable[..., Any], scores: Tensor, allowed: Tensor | None) -> None:
    scores = scores.requires_grad_()
    upstream = standard_normal(*scores.shape, seed=77, dtype=scores.dtype)
    weights = _weights(scores, allowed)
    (expected,) = torch.autograd.grad((weights * upstream).sum(), scores)
    weights = weights.detach()
    got = expect_tensor(gradient(weights, upstream), "The gradient", tuple(scores.shape), scores.dtype).detach()
    case = f"With weights of shape {tuple(scores.shape)}" + ("" if allowed is None else " of which some are masked")
    if not got.isfinite().all():
        place = tuple((~got.isfinite()).nonzero()[0].tolist())
        raise WrongAnswer(
            "NaN in the gradient",
            f"{case}, the gradient of score {format_index(place)} is {float(got[place])}; the weight there is "
            f"{float(weights[place]):.4g}. Do you divide by weights, or take their logarithm? The gradient needs "
            "neither.",
        )
    if allowed is not None and (got[~allowed] != 0).any():
        place = tuple(((got != 0) & ~allowed).nonzero()[0].tolist())
        raise WrongAnswer(
            "masked scores get a gradient",
            f"{case}, score {format_index(place)} is minus infinity, its weight is 0, and you send it "
            f"{float(got[place]):.3g}. If it is raised by a thousandth, does any weight change?",
        )
    if first_mismatch(got, expected, 1e-5) is None:
        return
    _explain(got, weights, upstream, case)


def _explain(got: Tensor, weights: Tensor, upstream: Tensor, case: str) -> None:
    if first_mismatch(got, weights * (1 - weights) * upstream, 1e-5) is None:
        raise WrongAnswer(
            "only its own weight",
            f"{case}: each score depends on its own weight only. But raising a score reduces all other "
            "weights of its row, and their upstream gradients have a say in that.",
        )
    sums = got.sum(-1)
    worst = int(sums.abs().argmax())
    if sums.abs().max() > 1e-4:
        raise WrongAnswer(
            "rows of the gradient do not sum to 0",
            f"{case}, the gradients of query {worst} sum to {float(sums.flatten()[worst]):.4f}. If all scores of a row "
            "are raised by the same amount, its weights stay as they are: what does that say about the sum? Along "
            "which axis do you add up?",
        )
    if first_mismatch(got, -(weights * (upstream - (weights * upstream).sum(-1, keepdim=True))), 1e-5) is None:
        raise WrongAnswer(
            "wrong sign", f"{case}, every number is right but for its sign. Raise a score: its weight grows."
        )
    raise WrongAnswer(
        "wrong gradient",
        f"{case}, rows sum to 0, as they must, and the numbers are others. Take a row of two keys with weights of one "
        "half each, and upstream gradients of 1 and 0: work out by hand what a small step of the first score changes.",
    )


def _boolean(value: Any, name: str, allowed: Tensor) -> Tensor:
    return expect_tensor(value, f"What `{name}` returns", tuple(allowed.shape), torch.bool)


def _check_scores(can_learn: Callable[..., Any], allowed: Tensor) -> None:
    if not isinstance(returned := can_learn(allowed), Tensor) or returned.dtype != torch.bool:
        raise WrongAnswer("not a boolean tensor", "`scores_can_learn` should return a tensor of True and False.")
    got = _boolean(returned, "scores_can_learn", allowed)
    case = f"With this `allowed`: {allowed.int().tolist()}"
    if (got & ~allowed).any():
        row, column = (got & ~allowed).nonzero()[0].tolist()
        raise WrongAnswer(
            "masked scores get a gradient", f"{case}, you let score {row}, {column} learn, which is masked."
        )
    single = allowed.sum(-1) == 1
    if got[single].any():
        row = int((got.any(-1) & single).nonzero()[0])
        raise WrongAnswer(
            "nothing to choose",
            f"{case}, you let the score in row {row} learn. Try it: change that score, from 0 to 100. What are the "
            "weights of this row before, and after?",
        )
    if (missing := allowed & ~single[:, None] & ~got).any():
        row, column = missing.nonzero()[0].tolist()
        raise WrongAnswer(
            "a score is left out", f"{case}, you let nothing come to score {row}, {column}. What forbids it?"
        )


def _check_values(can_learn: Callable[..., Any], allowed: Tensor) -> None:
    if not isinstance(returned := can_learn(allowed), Tensor) or returned.dtype != torch.bool:
        raise WrongAnswer("not a boolean tensor", "`values_can_learn` should return a tensor of True and False.")
    got = _boolean(returned, "values_can_learn", allowed)
    case = f"With this `allowed`: {allowed.int().tolist()}"
    if (got & ~allowed).any():
        row, column = (got & ~allowed).nonzero()[0].tolist()
        raise WrongAnswer(
            "masked values get a gradient",
            f"{case}, you let value {column} learn from query {row}, which does not see it. With which weight is the "
            "value multiplied there?",
        )
    if (missing := allowed & ~got).any():
        row, column = missing.nonzero()[0].tolist()
        raise WrongAnswer(
            "a value is left out",
            f"{case}, you let nothing come to value {column} from query {row}. Which weight does it have there, and "
            "does a value need a weight that can change, or one that is not 0?",
        )
