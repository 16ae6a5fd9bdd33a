"""Measure the effect of the scaling

Queries and keys are random, with standard normal components. One draw is one query and its own ten keys.

Write `measure(width, draws, seed)`. It makes that many draws with head dimension `width` and returns four numbers:

1. the standard deviation of the dot products of all draws,
2. the same for dot products divided by the square root of the width,
3. the share of draws whose largest weight, of the softmax over the ten keys, is above 0.30, without the scaling,
4. the same with the scaling.

A share is between 0 and 1. The same seed gives the same four numbers.

A textbook expects two things for every width: that the scaled standard deviation stays near 1, and that the largest
scaled weight stays under 0.30. Measure widths of 8, 64, 512 and 4,096. Then write `deviation_stays_near_one()` and
`largest_weight_stays_under_0_30()`, which return True or False: what you have measured, not what the book expects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attnscope.labs.exercise import Answer, WrongAnswer, expect_bool, expect_number, expect_tuple

STARTER = '''
import torch


def measure(width: int, draws: int, seed: int) -> tuple[float, float, float, float]:
    """Deviation of dot products, of scaled ones, share of draws with a weight above 0.30, and with scaling."""
    raise NotImplementedError


def deviation_stays_near_one() -> bool:
    """Whether the scaled standard deviation is near 1 for every width."""
    raise NotImplementedError


def largest_weight_stays_under_0_30() -> bool:
    """Whether the largest scaled weight is under 0.30 in every draw, for every width."""
    raise NotImplementedError
'''

SOLUTION = """
import math

import torch


def measure(width: int, draws: int, seed: int) -> tuple[float, float, float, float]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(draws, width, generator=generator)
    keys = torch.randn(draws, 10, width, generator=generator)
    products = torch.einsum("nd,nkd->nk", q, keys)
    scaled = products / math.sqrt(width)
    above = (products.softmax(-1).amax(-1) > 0.30).float().mean()
    scaled_above = (scaled.softmax(-1).amax(-1) > 0.30).float().mean()
    return products.std().item(), scaled.std().item(), above.item(), scaled_above.item()


def deviation_stays_near_one() -> bool:
    return True


def largest_weight_stays_under_0_30() -> bool:
    return False
"""

HINTS = (
    "Draw all queries as one tensor and all keys as another. Which shapes do they need so that every query has its "
    "own ten keys, and over which dimension is the sum?",
    "For the share, each draw counts once. Which dimension has to be reduced before you compare with 0.30, and what "
    "is the mean of a boolean tensor?",
    "For the last two functions, print the four numbers at each width and trust them. If the largest weight stayed "
    "under 0.30, what would the fourth number have to be?",
)

AFTERWARDS = (
    "You have measured what the book has not: the scaling keeps the standard deviation of scores at 1 for every "
    "width, and still the largest of ten weights is above 0.30 in nearly half of all draws. Without the scaling, the "
    "largest weight is 0.62 on average at width 8 and 0.95 at 512."
)

DRAWS = 2000
SHARES = {8: (0.949, 0.433), 64: (0.999, 0.470), 512: (1.0, 0.480)}
"""Shares above 0.30 in 40,000 draws (8,000 of the last), without and with scaling."""
MARGIN = 0.06
"""Five standard errors of a share of one half among 2,000 draws."""
NAMES = ("deviation", "scaled deviation", "share", "scaled share")


def check(answer: Answer) -> None:
    """The deviations, then the shares, then whether the numbers were believed."""
    measure = answer.function("measure")
    measured = {width: _measured(measure, width, DRAWS, 1) for width in SHARES}
    for width, numbers in measured.items():
        _check_deviations(width, numbers)
    _check_growth(measured)
    for width, numbers in measured.items():
        _check_shares(width, numbers)
    _check_seeds(measure, measured[64])
    _check_beliefs(answer)


def _measured(measure: Callable[..., Any], width: int, draws: int, seed: int) -> tuple[float, ...]:
    returned = expect_tuple(measure(width, draws, seed), "What `measure` returns", len(NAMES))
    numbers = tuple(
        expect_number(value, f"At width {width} the {name}") for name, value in zip(NAMES, returned, strict=True)
    )
    for name, value in zip(NAMES[2:], numbers[2:], strict=True):
        if not 0 <= value <= 1:
            raise WrongAnswer(
                "not a share",
                f"At width {width} the {name} is {value:g}, and a share is between 0 and 1. Is it a count, or per "
                "cent?",
            )
    return numbers


def _check_deviations(width: int, numbers: tuple[float, ...]) -> None:
    plain, scaled = numbers[:2]
    if plain == 0 or scaled == 0:
        raise WrongAnswer(
            "wrong deviation", f"At width {width} a deviation is 0, as if all dot products were one number."
        )
    if math.isclose(plain, 1, rel_tol=0.05) and math.isclose(scaled, math.sqrt(width), rel_tol=0.05):
        raise WrongAnswer(
            "scaled and not scaled swapped",
            f"At width {width} you return {plain:.3f} as the deviation and {scaled:.3f} as the scaled one. "
            "Which of the two does the task ask for first?",
        )


def _check_growth(measured: dict[int, tuple[float, ...]]) -> None:
    """Tell by all widths at once what a deviation does, as a learner would by looking at the column."""
    plain = {width: numbers[0] for width, numbers in measured.items()}
    scaled = {width: numbers[1] for width, numbers in measured.items()}
    if any(not math.isclose(value, math.sqrt(width), rel_tol=0.05) for width, value in plain.items()):
        variances = all(math.isclose(value, width, rel_tol=0.1) for width, value in plain.items())
        look = (
            "That is how a variance grows: the task asks for its root."
            if variances
            else "A dot product at width 1 is one number times another, and its deviation is 1. Are the numbers drawn "
            "from a standard normal, is the query another one in each draw, and is the deviation taken of the dot "
            "products, all of them?"
        )
        raise WrongAnswer("wrong deviation", f"The deviation of the dot products is {_row(plain)}. {look}")
    if any(not math.isclose(value, 1, rel_tol=0.05) for value in scaled.values()):
        raise WrongAnswer(
            "wrong scale",
            f"The deviation is right, and after scaling it is {_row(scaled)}. It should not depend on the "
            "width any more. What exactly do you divide by?",
        )
    if all(math.isclose(value, 1, rel_tol=1e-5) for value in scaled.values()):
        raise WrongAnswer(
            "scaled by what was measured",
            f"After scaling the deviation is {_row(scaled)}, to five digits and more, though numbers are "
            "drawn at random. Whatever is divided by its own deviation has one of 1. Attention does not know that "
            "deviation when it divides: which number does the task name?",
        )


def _row(values: dict[int, float]) -> str:
    return ", ".join(f"{value:.3f} at width {width}" for width, value in values.items())


def _check_shares(width: int, numbers: tuple[float, ...]) -> None:
    plain, scaled = numbers[2:]
    seen = f"At width {width} your shares are {plain:.3f} without and {scaled:.3f} with scaling."
    expected, expected_scaled = SHARES[width]
    right, right_scaled = abs(plain - expected) <= MARGIN, abs(scaled - expected_scaled) <= MARGIN
    if right and right_scaled:
        return
    if abs(scaled - expected) <= MARGIN and abs(plain - expected_scaled) <= MARGIN:
        raise WrongAnswer("scaled and not scaled swapped", f"{seen} Which of them does the scaling make sharper?")
    if right and scaled == 0:
        raise WrongAnswer(
            "as printed, not as measured",
            f"{seen} Not one draw of {DRAWS}? That is what the book expects. Print the largest weight of the first "
            "twenty draws, and count.",
        )
    if plain < 0.2 and scaled < 0.2:
        raise WrongAnswer(
            "softmax over the wrong axis" if scaled < 0.01 else "every weight counted",
            f"{seen} Both are very small. Ten weights that sum to 1: can all of them be under 0.30? Of how many "
            "numbers do you take the softmax, and how many times does each draw get to say yes or no?",
        )
    raise WrongAnswer(
        "wrong share",
        f"{seen} At least one of them is off by more than chance. A share is how many draws say yes, of all draws; "
        "a draw says yes if the largest of its ten weights is above 0.30. Is it a count that you return, or a mean of "
        "weights? Are the weights those of ten keys?",
    )


def _check_seeds(measure: Callable[..., Any], first: tuple[float, ...]) -> None:
    if _measured(measure, 64, DRAWS, 1) != first:
        raise WrongAnswer(
            "never the same twice", "Two calls with the same seed return different numbers. Where is the seed used?"
        )
    if _measured(measure, 64, DRAWS, 2) == first:
        raise WrongAnswer("the seed is ignored", "Seeds 1 and 2 return the very same numbers. Where does the seed go?")
    few = [_measured(measure, 16, 10, seed) for seed in range(8)]
    if any(abs(value * 10 - round(value * 10)) > 1e-4 for numbers in few for value in numbers[2:]):
        raise WrongAnswer(
            "wrong number of draws",
            f"Of 10 draws a share is a number of tenths; yours is {few[0][3]:g}. How many draws do you make?",
        )


def _check_beliefs(answer: Answer) -> None:
    near_one, under = (
        expect_bool(answer.function(name)(), name)
        for name in ("deviation_stays_near_one", "largest_weight_stays_under_0_30")
    )
    if not near_one:
        raise WrongAnswer(
            "not as measured",
            "Your scaled deviations are right, and `deviation_stays_near_one` says otherwise. Compare it at 8 and at "
            "512.",
        )
    if under:
        raise WrongAnswer(
            "as printed, not as measured",
            "`largest_weight_stays_under_0_30` says what the book says. Your own `measure` counted the draws in which "
            "it is not so: how many would there have to be if the book were right?",
        )
