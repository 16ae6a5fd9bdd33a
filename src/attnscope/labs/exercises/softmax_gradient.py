"""Implement the softmax and derive its gradient

Write three functions, without autograd: return formulas, not derivatives that torch computes.

- `softmax(scores)`: `scores` has the shape (..., n). Return weights over the last dimension: exponentials, divided by
  their sum. Scores may be as large as 10,000, and single scores may be minus infinity, with weight 0.
- `jacobian(scores)`: (..., n, n). Entry (a, b) is the derivative of weight a with respect to score b.
- `loss_gradient(scores, target)`: `scores` is (batch, n) and `target` (batch,) holds one index per row. The loss of a
  row is minus the logarithm of the weight of its target. Return the gradient of the *sum* of all losses with respect to
  the scores, (batch, n). It must be exact also where the weight of the target is too small for fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_tensor,
    first_mismatch,
    format_index,
    reject_known,
    standard_normal,
)

STARTER = '''
import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    """Return the weights (..., n)."""
    raise NotImplementedError


def jacobian(scores: Tensor) -> Tensor:
    """Return the derivatives (..., n, n) of weight a by score b."""
    raise NotImplementedError


def loss_gradient(scores: Tensor, target: Tensor) -> Tensor:
    """Return the gradient (batch, n) of the summed losses."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def jacobian(scores: Tensor) -> Tensor:
    weights = softmax(scores)
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


def loss_gradient(scores: Tensor, target: Tensor) -> Tensor:
    wanted = torch.nn.functional.one_hot(target, scores.shape[-1])
    return softmax(scores) - wanted
"""

HINTS = (
    "Adding one number to all scores of a row does not change the weights. Which number keeps every exponential at 1 "
    "or below?",
    "Differentiate w_a = e^(s_a) / S by the quotient rule, once by s_a itself and once by another score s_b. Both "
    "results can be written with weights only.",
    "The loss is log(sum of exponentials) minus the score of the target. The derivative of the first term by a score "
    "is something that you have already computed; the derivative of the second is 0 or -1.",
)

AFTERWARDS = (
    "The gradient of the loss is the weights minus the target, and never vanishes for a confident mistake. The "
    "Jacobian of the weights alone does: that is what saturation means."
)


def check(answer: Answer) -> None:
    """Weights for ordinary, large and masked scores; then the Jacobian and the gradient of the loss."""
    softmax = answer.function("softmax")
    for seed, shape in enumerate(((5,), (4, 7), (2, 3, 6))):
        scores = standard_normal(*shape, seed=seed)
        _check_weights(expect_tensor(softmax(scores), "The weights", shape), scores, f"With scores of shape {shape}")
    large = standard_normal(3, 5, seed=9) * 3000
    _check_weights(expect_tensor(softmax(large), "The weights", (3, 5)), large, "With scores in the thousands")
    shifted = standard_normal(3, 5, seed=10) + torch.tensor([[-200.0], [0.0], [200.0]])
    _check_weights(
        expect_tensor(softmax(shifted), "The weights", (3, 5)), shifted, "With one row near -200 and one near 200"
    )
    masked = standard_normal(2, 4, seed=11).index_fill(1, torch.tensor([1]), -torch.inf)
    _check_weights(expect_tensor(softmax(masked), "The weights", (2, 4)), masked, "With a score of minus infinity")
    _check_jacobian(answer)
    _check_loss_gradient(answer)


def _check_weights(weights: Tensor, scores: Tensor, case: str) -> None:
    expected = scores.double().softmax(-1)
    if not weights.isfinite().all():
        raise WrongAnswer(
            "overflow",
            f"{case}, there is a NaN or an infinity among the weights. What is the exponential of the largest score in "
            "fp32, and what is infinity divided by infinity?",
        )
    if (place := first_mismatch(weights, expected, 5e-5)) is None:
        return
    sums = weights.double().sum(-1)
    if (row := first_mismatch(sums, torch.ones_like(sums), 1e-4)) is not None:
        raise WrongAnswer(
            "rows do not sum to 1",
            f"{case}, the weights of row {format_index(row) if row else '0'} sum to {float(sums[row]):.4f}. Over which "
            "dimension is your sum, and does it keep that dimension?",
        )
    raise WrongAnswer(
        "wrong weights",
        f"{case}, weight {format_index(place)} is {float(weights[place]):.4f}. Compute that one by hand.",
    )


def _check_jacobian(answer: Answer) -> None:
    jacobian = answer.function("jacobian")
    for seed, shape in enumerate(((5,), (2, 3, 4)), 20):
        scores = standard_normal(*shape, seed=seed)
        found = expect_tensor(jacobian(scores), "The Jacobian", (*shape, shape[-1]))
        weights = scores.double().softmax(-1)
        diagonal, outer = torch.diag_embed(weights), weights[..., :, None] * weights[..., None, :]
        if first_mismatch(found, diagonal - outer, 1e-5) is None:
            continue
        own = torch.diag_embed(weights * (1 - weights))
        reject_known(
            found,
            {
                "only the diagonal": (
                    own,
                    "The diagonal is right, and all other derivatives are 0. If one score rises, what happens to the "
                    "weights of the other keys, which share the same sum?",
                ),
                "wrong sign": (outer - diagonal, "All derivatives have the wrong sign. Does a weight rise with its own "
                               "score?"),
                "the sum is constant": (
                    diagonal,
                    "This is the derivative as if the sum of the exponentials did not depend on the scores. It does.",
                ),
            },
        )  # fmt: skip
        columns = found.double().sum(-2)
        place = first_mismatch(found, diagonal - outer, 1e-5)
        assert place is not None
        raise WrongAnswer(
            "wrong Jacobian",
            f"Entry {format_index(place)} is {float(found[place]):.4f}. All weights sum to 1 whatever the scores "
            "are, so derivatives by one score sum to 0 over the weights. Yours sum to "
            f"{float(columns.flatten()[0]):.4f}.",
        )


def _check_loss_gradient(answer: Answer) -> None:
    gradient_of = answer.function("loss_gradient")
    scores, target = standard_normal(4, 6, seed=30), torch.tensor([2, 0, 5, 2])
    found = expect_tensor(gradient_of(scores, target), "The gradient", (4, 6))
    weights = scores.double().softmax(-1)
    wanted = torch.nn.functional.one_hot(target, 6).double()
    expected = weights - wanted
    if (place := first_mismatch(found, expected, 1e-5)) is not None:
        reject_known(
            found,
            {
                "averaged": (
                    expected / 4,
                    "This is the gradient of the mean of the losses. The task asks for that of the sum.",
                ),
                "wrong sign": (
                    -expected,
                    "The sign is wrong: a step against the gradient should raise the score of the target.",
                ),
                "the target is missing": (
                    weights,
                    "This is the derivative of the logarithm of the sum. The loss has a second term, the score of the "
                    "target.",
                ),
            },
        )
        raise WrongAnswer(
            "wrong gradient",
            f"Entry {format_index(place)} is {float(found[place]):.4f}. Each row of the gradient sums to 0, and only "
            "the target has a negative entry.",
        )
    far = torch.tensor([[0.0, 300.0, 0.0]])
    found = expect_tensor(gradient_of(far, torch.tensor([0])), "The gradient", (1, 3))
    if first_mismatch(found, torch.tensor([[-1.0, 1.0, 0.0]]), 1e-5) is not None:
        raise WrongAnswer(
            "lost in rounding",
            f"With scores 0, 300, 0 and target 0 the gradient is {[float(value) for value in found[0]]}. The weight of "
            "the target is 0 in fp32. Simplify the formula on paper until nothing is divided by that weight.",
        )
