"""Derive the variance of attention scores

Derive the results instead of sampling: your functions return exact values.

- `moments(width, q_deviation, k_deviation)`: the mean and the variance of the dot product q·k. The `width` components
  of q and of k are independent, with mean 0 and the given standard deviations.
- `scaled_moments(width, q_deviation, k_deviation)`: the same for the dot product divided by the square root of the
  width.
- `weight_of_the_large_one(score, times, keys)`: one of `keys` keys has the score `times * score`, all others have
  `score`. Return its softmax weight.

Then use your last function: is "ten times as large as the others" a lot or a little?
"""

from __future__ import annotations

import math

from attnscope.labs.exercise import Answer, WrongAnswer, expect_number, expect_tuple

STARTER = '''
import math


def moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    """Mean and variance of q.k."""
    raise NotImplementedError


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    """Mean and variance of q.k divided by the square root of the width."""
    raise NotImplementedError


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    """The softmax weight of the key with `times * score`, where `keys - 1` others have `score`."""
    raise NotImplementedError
'''

SOLUTION = """
import torch


def moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    return 0.0, width * q_deviation**2 * k_deviation**2


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    mean, variance = moments(width, q_deviation, k_deviation)
    return mean, variance / width


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    scores = torch.full((keys,), score, dtype=torch.float64)
    scores[0] = times * score
    return scores.softmax(0)[0].item()
"""

HINTS = (
    "Start with width 1: the product of two independent numbers. What is its mean? What is the mean of its square?",
    "Means of a sum add up, and for independent terms so do variances. If a number is multiplied by c, so is its "
    "standard deviation: what happens to its variance?",
    "For the softmax, write down the fraction for three keys with their three exponentials. Then divide numerator "
    "and denominator by the largest of them: the result depends on differences of scores, and no exponential "
    "overflows.",
)

AFTERWARDS = (
    "Ten times as large means nothing by itself: 0.1 compared with 1 gives nearly equal weights, 10 compared with "
    "100 gives all the weight to one key. Softmax depends on differences. Without the scaling, these grow with the "
    "square root of the width, before anything has been learned."
)

CASES = ((1, 1.0, 1.0), (64, 1.0, 1.0), (128, 1.0, 1.0), (64, 2.0, 1.0), (64, 1.0, 0.5), (10, 3.0, 0.25))
LARGE = ((1.0, 10.0, 2), (0.1, 10.0, 10), (1.0, 10.0, 10), (2.5, 3.0, 64), (-1.0, 10.0, 4), (0.0, 10.0, 5))
HUGE = ((100.0, 10.0, 10), (1000.0, 1.0, 4), (-500.0, 3.0, 3))


def check(answer: Answer) -> None:
    """The two moments, those of scaled products, and the weight, also where exponentials overflow."""
    for case in CASES:
        _check_moments(answer, *case)
    for case in CASES:
        _check_scaled(answer, *case)
    for score, times, keys in (*LARGE, *HUGE):
        _check_weight(answer, score, times, keys)


def _pair(answer: Answer, name: str, width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    returned = expect_tuple(answer.function(name)(width, q_deviation, k_deviation), f"What `{name}` returns", 2)
    mean, variance = expect_number(returned[0], "The mean"), expect_number(returned[1], "The variance")
    call = f"`{name}({width}, {q_deviation:g}, {k_deviation:g})`"
    if 0 < abs(mean) < 0.1 * math.sqrt(max(variance, 0)):
        raise WrongAnswer(
            "drawn, not worked out",
            f"{call} returns the mean {mean:g}: close to a simple number, but not equal, as from "
            "random numbers. No draws are needed. Is a product of two numbers around 0 more often above 0 or below?",
        )
    if mean != 0:
        raise WrongAnswer(
            "wrong mean",
            f"{call} says that the mean is {mean:g}. Each product is as often above 0 as below, by as much: where "
            "would a mean come from?",
        )
    if not variance > 0:
        raise WrongAnswer("wrong variance", f"{call} says that the variance is {variance:g}. Something does vary.")
    return mean, variance


def _check_moments(answer: Answer, width: int, q_deviation: float, k_deviation: float) -> None:
    _, variance = _pair(answer, "moments", width, q_deviation, k_deviation)
    expected = width * (q_deviation * k_deviation) ** 2
    if math.isclose(variance, expected, rel_tol=1e-9):
        return
    call = f"`moments({width}, {q_deviation:g}, {k_deviation:g})` says {variance:g}"
    if math.isclose(variance**2, expected, rel_tol=1e-4):
        raise WrongAnswer(
            "deviation instead of variance",
            f"{call}. Halve the width, and look how your number changes: is that how the variance of a sum changes if "
            "it has half as many independent terms?",
        )
    if q_deviation == k_deviation == 1:
        raise WrongAnswer(
            "wrong variance",
            f"{call}. How many terms does the sum have, and what is the variance of one of them? Independent terms add "
            "their variances.",
        )
    raise WrongAnswer(
        "deviations not squared",
        f"{call}. With deviations of 1 it was right. If q is doubled, every dot product doubles: what does that do to "
        "the mean of their squares?",
    )


def _check_scaled(answer: Answer, width: int, q_deviation: float, k_deviation: float) -> None:
    _, variance = _pair(answer, "scaled_moments", width, q_deviation, k_deviation)
    if math.isclose(variance, (q_deviation * k_deviation) ** 2, rel_tol=1e-9):
        return
    plain = _pair(answer, "moments", width, q_deviation, k_deviation)[1]
    call = f"`scaled_moments({width}, {q_deviation:g}, {k_deviation:g})` says {variance:g}"
    if math.isclose(variance, plain / math.sqrt(width), rel_tol=1e-9):
        raise WrongAnswer(
            "the variance is divided like the number",
            f"{call}: {plain:g}, divided by the root of {width}. The numbers are divided by that root. Is their "
            "variance, the mean of their squares?",
        )
    if math.isclose(variance, 1) and (q_deviation, k_deviation) != (1, 1):
        raise WrongAnswer(
            "always one",
            f"{call}. Does the division by the root of the width know how large q and k were drawn?",
        )
    raise WrongAnswer(
        "wrong scaled variance",
        f"{call}, and `moments` says {plain:g}. What does dividing every number by one constant do to the mean of "
        "their squares?",
    )


def _check_weight(answer: Answer, score: float, times: float, keys: int) -> None:
    call = f"weight_of_the_large_one({score:g}, {times:g}, {keys})"
    weight = expect_number(answer.function("weight_of_the_large_one")(score, times, keys), f"What `{call}` returns")
    if not math.isfinite(weight):
        raise WrongAnswer(
            "not a finite number",
            f"`{call}` is {weight}: some exponential is too large for a number. Weights depend on differences of "
            "scores alone. Can you write the fraction with differences only, so that no exponent is above 0?",
        )
    gap = (times - 1) * score
    expected = 1 / (1 + (keys - 1) * math.exp(-gap)) if gap > -700 else 0.0
    if math.isclose(weight, expected, rel_tol=1e-5, abs_tol=1e-12):
        return
    if math.isclose(weight, 1 / (1 + keys * math.exp(-gap)), rel_tol=1e-5):
        raise WrongAnswer(
            "keys miscounted", f"`{call}` is {weight:g}. How many keys are there in addition to the large one?"
        )
    if math.isclose(weight, times / (times + keys - 1), rel_tol=1e-5):
        raise WrongAnswer(
            "no softmax",
            f"`{call}` is {weight:g}, whatever the score is. That shares out in proportion to the scores. Softmax "
            "first does something else to each of them.",
        )
    raise WrongAnswer(
        "wrong weight",
        f"`{call}` is {weight:g}. Write the scores of all {keys} keys down, and their exponentials: which of them "
        "are in the numerator, and which in the denominator?",
    )
