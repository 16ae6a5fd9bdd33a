"""A verdict stands as long as its numbers keep their margins, and never turns into another one."""

from __future__ import annotations

import math

import pytest

from attnscope.errors import SettingError
from attnscope.labs import Decision, Measurement, Verdict

INSIDE = Measurement(name="share", value=0.5, low=0.4, high=0.6)
OUTSIDE = Measurement(name="loss", value=0.7, high=0.6)


@pytest.mark.parametrize(
    ("value", "low", "high", "is_inside"),
    [
        (0.4, 0.4, 0.6, True),
        (0.6, 0.4, 0.6, True),
        (0.3999, 0.4, 0.6, False),
        (0.6001, 0.4, 0.6, False),
        (1e9, 0.4, math.inf, True),
        (math.inf, 0.4, math.inf, True),
        (-1e9, -math.inf, 0.6, True),
        (math.nan, -math.inf, 0.6, False),
        (math.nan, 0.4, math.inf, False),
        (7, 7, 7, True),
    ],
)
def test_the_ends_of_a_margin_belong_to_it_and_nan_to_none(
    value: float, low: float, high: float, is_inside: bool
) -> None:
    assert Measurement(name="n", value=value, low=low, high=high).is_inside is is_inside


def test_a_margin_is_told_with_all_its_digits() -> None:
    numbers = {
        "exactly 2,359,296": Measurement(name="n", value=0, low=2359296, high=2359296),
        "0.9999 to 1.0001": Measurement(name="n", value=0, low=0.9999, high=1.0001),
        "at most 1e-12": Measurement(name="n", value=0, high=1e-12),
        "at least 123,457": Measurement(name="n", value=0, low=123457),
    }
    assert {number.interval: number for number in numbers.values()} == numbers


@pytest.mark.parametrize("verdict", [Verdict.HOLDS, Verdict.DOES_NOT_HOLD, Verdict.NOT_SHOWN])
def test_one_number_outside_of_its_margin_unsettles_any_verdict(verdict: Verdict) -> None:
    settled = Decision(claim="1a", expected=verdict, reason="", measurements=(INSIDE, INSIDE))
    inconclusive = Decision(claim="1a", expected=verdict, reason="", measurements=(INSIDE, OUTSIDE))
    assert (settled.verdict, settled.text) == (verdict, verdict.value)
    assert (inconclusive.verdict, inconclusive.text) == (Verdict.INCONCLUSIVE, "inconclusive")


def test_a_condition_is_told_with_its_verdict_and_not_where_nothing_is_settled() -> None:
    words = {"claim": "1a", "expected": Verdict.HOLDS_WHEN, "reason": "", "condition": "it rains"}
    assert Decision(measurements=(INSIDE,), **words).text == "holds when it rains"
    assert Decision(measurements=(OUTSIDE,), **words).text == "inconclusive"


@pytest.mark.parametrize(
    ("verdict", "measurements", "condition", "message"),
    [
        (Verdict.HOLDS, (), "", "measurement"),
        (Verdict.HOLDS, (INSIDE, Measurement(name="n", value=1.0)), "", "low or high"),
        (Verdict.HOLDS, (INSIDE,), "it rains", "`condition`"),
        (Verdict.HOLDS_WHEN, (INSIDE,), "", "`condition`"),
    ],
)
def test_what_could_decide_nothing_is_refused(
    verdict: Verdict, measurements: tuple[Measurement, ...], condition: str, message: str
) -> None:
    with pytest.raises(SettingError, match=f"claim 1a.*{message}"):
        Decision(claim="1a", expected=verdict, reason="", measurements=measurements, condition=condition)
