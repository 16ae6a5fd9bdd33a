"""Implement layer norm and batch norm

Both norms subtract a mean and divide by the square root of a variance plus `epsilon`. Then each column is multiplied
by its `gain`, and its `shift` is added. They differ in where mean and variance come from. The variance is the mean
squared distance from the mean, without Bessel's correction.

- `layer_norm(x, gain, shift, epsilon)`: `x` has shape `(..., width)`. Each row has its own mean and variance, over its
  columns.
- `batch_norm(x, gain, shift, running_mean, running_variance, training, momentum, epsilon)`: `x` has shape `(batch,
  width)`. In training, each column has its own mean and variance over the rows of the batch, and the running mean and
  variance move a fraction `momentum` towards those of the batch. In evaluation, the running values are used and do not
  change. Return three tensors: the output, and the new running mean and variance. Do not change the input tensors.

All results must be finite: for a row of equal numbers, and in training with a batch of one. (The batch norm of torch
raises an error for the latter. The output of yours will show you why.)
"""

from __future__ import annotations

from collections.abc import Callable
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


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor, epsilon: float = 1e-5) -> Tensor:
    """(..., width): each row is normalised over its columns; gain and shift have shape (width,)."""
    raise NotImplementedError


def batch_norm(
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    training: bool,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, width): the output, and the running mean and variance (width,) as they are afterwards."""
    raise NotImplementedError
'''

SOLUTION = """
import torch


def layer_norm(x, gain, shift, epsilon=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    if training:
        mean, variance = x.mean(0), x.var(0, correction=0)
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_variance = (1 - momentum) * running_variance + momentum * variance
    else:
        mean, variance = running_mean, running_variance
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift, running_mean, running_variance
"""

HINTS = (
    "Draw the input as a table with one row per example. Layer norm works along a row, batch norm along a column. "
    "Which dimension is reduced by the mean, and how does the mean broadcast to the table again?",
    "The functions of torch for variance and standard deviation have an option for the divisor; check its default. "
    "And note the order: first the variance, then epsilon, then the square root.",
    "In training, batch norm uses the statistics of the batch and updates the running ones. In evaluation it must "
    "not use the batch at all: the output for an example does not depend on the others. In a batch of one, what is "
    "the distance of the only row from the mean?",
)

AFTERWARDS = (
    "In training, the output for a batch of one is the shift, whatever the input: this is how batch norm fails "
    "there. In evaluation a batch of one works, with the running values. Layer norm never depends on other rows."
)

TOLERANCE = 1e-4


def check(answer: Answer) -> None:
    """Find the first thing that is wrong with an answer."""
    layer, batch = answer.function("layer_norm"), answer.function("batch_norm")
    _check_rows(layer)
    _check_gain(layer)
    _check_hard_rows(layer)
    _check_gradient(layer)
    _check_training(batch)
    _check_running(batch)
    _check_inference(batch)
    _check_one(batch)


def _plain(width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A gain and a shift that do nothing."""
    return torch.ones(width, dtype=dtype), torch.zeros(width, dtype=dtype)


def _normed(x: Tensor, dimension: int | tuple[int, ...], epsilon: float = 1e-5) -> Tensor:
    """In fp64: the distance from the mean by the root of the variance."""
    x = x.double()
    return (x - x.mean(dimension, keepdim=True)) / (x.var(dimension, correction=0, keepdim=True) + epsilon).sqrt()


def _right(x: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """In fp64: layer norm."""
    return _normed(x, -1, epsilon) * gain + shift


def _check_rows(layer: Callable[..., Any]) -> None:
    for shape, dtype in (((4, 6), torch.float32), ((5, 5), torch.float32), ((2, 3, 7), torch.float64), ((1, 8), None)):
        x = 3 * standard_normal(*shape, seed=len(shape), dtype=dtype or torch.float32) + 2
        where = f"`layer_norm` of {tuple(shape)}"
        output = expect_tensor(layer(x, *_plain(shape[-1], x.dtype), 1e-5), f"The output of {where}", shape, x.dtype)
        if (found := first_mismatch(output, _normed(x, -1), TOLERANCE)) is not None:
            mean, square = output[found[:-1]].mean().item(), output[found[:-1]].square().mean().item()
            seen = f"In {where}, row {format_index(found[:-1])} has mean {mean:.4f} and mean square {square:.4g}."
            _explain_rows(x, output, seen, is_centred=abs(mean) <= TOLERANCE)


def _explain_rows(x: Tensor, output: Tensor, seen: str, *, is_centred: bool) -> None:
    """Rows are not normalised as they should be: find out how they are."""

    def is_near(expected: Tensor, tolerance: float = TOLERANCE) -> bool:
        return first_mismatch(output, expected, tolerance) is None

    right, width = _normed(x, -1), x.shape[-1]
    if is_near(_normed(x, 0)):
        raise WrongAnswer(
            "over the batch",
            f"{seen} It is normalised down a column, over rows that have nothing to do with each other. Along which "
            "dimension is the mean taken?",
        )
    if x.ndim == 3 and is_near(_normed(x, (-2, -1))):
        words = f"{seen} All {x.shape[-2]} rows of a sequence share a mean and a variance; each should have its own."
        raise WrongAnswer("over several rows at once", words)
    if is_near(right * ((width - 1) / width) ** 0.5, 1e-3):
        raise WrongAnswer(
            "divided by one too few",
            f"{seen} The mean is right, the spread is a little too small, and more so the narrower the row. By how "
            "many does your variance divide?",
        )
    if is_near(right / x.double().var(-1, correction=0, keepdim=True).sqrt(), 1e-2):
        words = f"{seen} It is divided by the variance itself. In which unit is a variance, and in which is x?"
        raise WrongAnswer("the root is missing", words)
    if not is_centred:
        words = f"{seen} The mean should be 0. Which mean is subtracted: that of this row, lined up with this row?"
        raise WrongAnswer("the mean is not 0", words)
    raise WrongAnswer("the spread is not 1", f"{seen} The mean is right. What is it divided by, for each row?")


def _check_gain(layer: Callable[..., Any]) -> None:
    x, gain, shift = standard_normal(3, 4, seed=5), standard_normal(4, seed=6), standard_normal(4, seed=7)
    output = expect_tensor(layer(x, gain, shift, 1e-5), "The output of `layer_norm`", (3, 4), x.dtype)
    if (found := first_mismatch(output, _normed(x, -1) * gain + shift, TOLERANCE)) is None:
        return
    seen = f"With a gain and a shift, entry {found} of `layer_norm` is {output[found].item():.4g}."
    if first_mismatch(output, _normed(x, -1), TOLERANCE) is None:
        raise WrongAnswer("gain and shift unused", f"{seen} That is what it is without them.")
    if first_mismatch(output, (_normed(x, -1) + shift) * gain, TOLERANCE) is None:
        raise WrongAnswer(
            "shifted before the gain", f"{seen} The shift is multiplied, too. Which of the two comes first?"
        )
    raise WrongAnswer(
        "gain or shift misused", f"{seen} Without them all was right. How do they line up with the columns?"
    )


def _check_hard_rows(layer: Callable[..., Any]) -> None:
    gain, shift = _plain(6)
    equal = expect_tensor(layer(torch.full((2, 6), 3.0), gain, shift, 1e-5), "The output for equal numbers", (2, 6))
    if not equal.isfinite().all():
        raise WrongAnswer(
            "NaN in a row",
            f"A row of six times 3 gives {equal[0].tolist()}. Its variance is 0: what keeps you from dividing by it?",
        )
    x = 1e-3 * standard_normal(2, 6, seed=8)
    for epsilon in (1e-5, 1e-2):
        output = expect_tensor(layer(x, gain, shift, epsilon), "The output for small numbers", (2, 6))
        if (found := first_mismatch(output, _normed(x, -1, epsilon), 1e-3)) is not None:
            raise WrongAnswer(
                "epsilon in the wrong place",
                f"For rows of numbers near 0.001 and epsilon={epsilon}, entry {found} is {output[found].item():.3g}. "
                "For large numbers all was right, so it is about epsilon: where is it added, and which one is it?",
            )
    x = standard_normal(2, 6, seed=9) + 4_000
    output = expect_tensor(layer(x, gain, shift, 1e-5), "The output for large numbers", (2, 6))
    if (found := first_mismatch(output, _normed(x, -1), 1e-2)) is not None:
        raise WrongAnswer(
            "digits lost",
            f"For numbers around 4,000 that differ by about 1, entry {found} is {output[found].item():.4g}, which is "
            "far off. The difference of two large numbers that are nearly the same has few digits left. Which "
            "subtraction should come first?",
        )


def _check_gradient(layer: Callable[..., Any]) -> None:
    x, weights = (
        standard_normal(2, 5, seed=10, dtype=torch.float64),
        standard_normal(2, 5, seed=11, dtype=torch.float64),
    )
    gradients = []
    for norm in (layer, _right):
        leaf = x.clone().requires_grad_()
        output = expect_tensor(norm(leaf, *_plain(5, x.dtype), 1e-5), "The output of `layer_norm`", (2, 5))
        if not output.requires_grad:
            raise WrongAnswer("the gradient stops", "Nothing flows back from the output of `layer_norm` to x.")
        gradients.append(torch.autograd.grad((output * weights).sum(), leaf)[0])
    given, right = gradients
    if first_mismatch(given, right, 1e-6) is not None:
        raise WrongAnswer(
            "the gradient stops",
            "The output of `layer_norm` is right, its gradient is not: x acts through its mean and its variance as "
            "well. Are they detached, or computed without gradients?",
        )


def _batch(
    batch: Callable[..., Any], x: Tensor, *, training: bool, momentum: float = 0.1, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Run batch norm with a gain, a shift and running values that are no round numbers."""
    width = x.shape[1]
    given = batch(x, *_affine(width), *_running(width), training, momentum, epsilon)
    output, mean, variance = expect_tuple(given, "What `batch_norm` returns", 3)
    return (
        expect_tensor(output, "The output of `batch_norm`", tuple(x.shape), x.dtype),
        expect_tensor(mean, "The running mean that `batch_norm` returns", (width,)),
        expect_tensor(variance, "The running variance that `batch_norm` returns", (width,)),
    )


def _affine(width: int) -> tuple[Tensor, Tensor]:
    return standard_normal(width, seed=21), standard_normal(width, seed=22)


def _running(width: int) -> tuple[Tensor, Tensor]:
    return standard_normal(width, seed=23), standard_normal(width, seed=24).abs() + 0.5


def _with_running(x: Tensor, epsilon: float = 1e-5) -> Tensor:
    """In fp64: batch norm outside of training."""
    (gain, shift), (mean, variance) = _affine(x.shape[1]), _running(x.shape[1])
    return (x.double() - mean) / (variance.double() + epsilon).sqrt() * gain + shift


def _uses_running(x: Tensor, output: Tensor) -> bool:
    """Whether the output is made with the running values, as they were before the batch or as they are after it."""
    (gain, shift), old, new = _affine(x.shape[1]), _running(x.shape[1]), (x.mean(0), x.var(0, correction=0))
    mean, variance = (before + 0.1 * (now - before) for before, now in zip(old, new, strict=True))
    after = (x - mean) / (variance + 1e-5).sqrt() * gain + shift
    return any(first_mismatch(output, made, TOLERANCE) is None for made in (_with_running(x), after))


def _check_training(batch: Callable[..., Any]) -> None:
    for shape in ((8, 3), (5, 5), (2, 6)):
        x = 2 * standard_normal(*shape, seed=25) + 1
        gain, shift = _affine(shape[1])
        output, _, _ = _batch(batch, x, training=True)
        found = first_mismatch(output, _normed(x, 0) * gain + shift, TOLERANCE)
        if found is None:
            continue
        seen = f"In training with a batch of {shape}, entry {found} of `batch_norm` is {output[found].item():.4g}."
        n = shape[0]
        if first_mismatch(output, _normed(x, 1) * gain + shift, TOLERANCE) is None:
            raise WrongAnswer(
                "over the columns", f"{seen} Each row is normalised for itself, and that is the other norm."
            )
        if _uses_running(x, output):
            raise WrongAnswer(
                "running values in training",
                f"{seen} The running mean and variance went into it. In training the batch speaks for itself.",
            )
        if first_mismatch(output, _normed(x, 0) * ((n - 1) / n) ** 0.5 * gain + shift, 1e-3) is None:
            words = f"{seen} The spread is a little too small, more so in a small batch. By how many do you divide?"
            raise WrongAnswer("divided by one too few", words)
        raise WrongAnswer(
            "training output wrong",
            f"{seen} Which mean and which variance belong to its column, and are gain and shift as in layer norm?",
        )


def _check_running(batch: Callable[..., Any]) -> None:
    x = 2 * standard_normal(6, 3, seed=26) + 1
    old, new = _running(3), (x.mean(0), x.var(0, correction=0))
    unbiased = x.var(0)  # what torch keeps; both are in use, so both are right
    for momentum in (0.1, 0.75):
        _, *kept = _batch(batch, x, training=True, momentum=momentum)
        for name, given, before, now in zip(("mean", "variance"), kept, old, new, strict=True):
            rights = [before + momentum * (value - before) for value in (now, unbiased if name == "variance" else now)]
            if any(first_mismatch(given, right, TOLERANCE) is None for right in rights):
                continue
            seen = (
                f"In training with momentum={momentum}, the running {name} goes from {_list(before)} to {_list(given)}"
            )
            if torch.equal(given, before):
                raise WrongAnswer("running values not updated", f"{seen}: it does not move.")
            if first_mismatch(given, now, TOLERANCE) is None:
                raise WrongAnswer(
                    "the past is forgotten", f"{seen}, all of the way. Which part of the way was asked for?"
                )
            if first_mismatch(given, now + momentum * (before - now), TOLERANCE) is None:
                raise WrongAnswer(
                    "momentum the wrong way round",
                    f"{seen}. The batch has {_list(now)}. Which of the two does a small momentum stay near to?",
                )
            raise WrongAnswer(
                "running values wrong", f"{seen}. The batch has {_list(now)}, to go a part of the way to."
            )


def _list(values: Tensor) -> str:
    return "(" + ", ".join(f"{value:.3f}" for value in values.tolist()) + ")"


def _check_inference(batch: Callable[..., Any]) -> None:
    x = 2 * standard_normal(6, 4, seed=27) + 1
    output, mean, variance = _batch(batch, x, training=False)
    if (found := first_mismatch(output, _with_running(x), TOLERANCE)) is not None:
        alone, _, _ = _batch(batch, x[:1], training=False)
        if first_mismatch(alone, output[:1], TOLERANCE) is not None:
            raise WrongAnswer(
                "neighbours matter at inference",
                f"Outside of training, the first example gives {_list(output[0])} in a batch of 6 and "
                f"{_list(alone[0])} alone. Where do mean and variance come from when nothing is learned any more?",
            )
        raise WrongAnswer(
            "running values misused",
            f"Outside of training, entry {found} is {output[found].item():.4g}. It does not depend on the batch, and "
            "that is good. How do the running mean and variance go in, with epsilon, gain and shift as ever?",
        )
    if not (torch.equal(mean, _running(4)[0]) and torch.equal(variance, _running(4)[1])):
        raise WrongAnswer(
            "learns at inference",
            f"Outside of training the running mean goes from {_list(_running(4)[0])} to {_list(mean)}. Whoever uses a "
            "model should not change it.",
        )


def _check_one(batch: Callable[..., Any]) -> None:
    x = standard_normal(1, 4, seed=28)
    output, mean, variance = _batch(batch, x, training=True)
    for what, values in {"output": output, "running mean": mean, "running variance": variance}.items():
        if not values.isfinite().all():
            raise WrongAnswer(
                "not finite for a batch of one",
                f"In training with a batch of one, the {what} is {values.flatten().tolist()}. What is the variance of "
                "a single number, if one divides by how many there are?",
            )
    if first_mismatch(output, _affine(4)[1][None], TOLERANCE) is not None:
        raise WrongAnswer(
            "a batch of one treated otherwise",
            f"In training with a batch of one the output is {_list(output[0])}. The rule is the same as for every "
            "batch: what is the distance of the only row from the mean of the batch?",
        )
    alone, _, _ = _batch(batch, x, training=False)
    if first_mismatch(alone, _with_running(x), TOLERANCE) is not None:
        words = f"Outside of training, one example alone gives {_list(alone[0])}. Is there a special case too many?"
        raise WrongAnswer("running values misused", words)
