"""Verdicts on claims, and the measurements that support them.

The author of a lab states the expected verdict and an interval for each measurement. A run confirms the verdict if all
measurements are inside their intervals. Otherwise it is inconclusive; it never turns into another verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from attnscope.errors import SettingError


class Verdict(StrEnum):
    """The verdict of a run on a claim."""

    HOLDS = "holds"
    HOLDS_WHEN = "holds when"
    DOES_NOT_HOLD = "does not hold"
    NOT_SHOWN = "not shown by this evidence"
    INCONCLUSIVE = "inconclusive"
    """A measurement is outside its interval."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measured value, and the interval in which it supports the verdict.

    >>> Measurement(name="share", value=0.47, low=0.4, high=0.55).is_inside
    True
    >>> Measurement(name="loss", value=float("nan"), high=1.0).is_inside
    False
    """

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_inside(self) -> bool:
        """Whether the value is inside its interval; NaN never is."""
        return self.low <= self.value <= self.high

    @property
    def interval(self) -> str:
        """The interval as text.

        >>> Measurement(name="loss", value=0.2, high=1.0).interval
        'at most 1'
        >>> Measurement(name="share", value=0.5, low=0.4, high=0.6).interval
        '0.4 to 0.6'
        >>> Measurement(name="weights", value=2359296, low=2359296, high=2359296).interval
        'exactly 2,359,296'
        """
        low, high = (f"{end:,.10g}" for end in (self.low, self.high))
        if self.low == self.high:
            return f"exactly {low}"
        if math.isinf(self.low):
            return f"at most {high}"
        return f"at least {low}" if math.isinf(self.high) else f"{low} to {high}"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The verdict on a claim, with its condition, reason and measurements."""

    claim: str
    expected: Verdict
    reason: str
    measurements: tuple[Measurement, ...]
    condition: str = ""

    def __post_init__(self) -> None:
        if not self.measurements:
            raise SettingError(f"decide: claim {self.claim} needs at least one measurement")
        if any(math.isinf(measurement.low) and math.isinf(measurement.high) for measurement in self.measurements):
            raise SettingError(f"decide: claim {self.claim} has a measurement without an interval; give low or high")
        if (self.expected is Verdict.HOLDS_WHEN) != bool(self.condition):
            raise SettingError(
                f"decide: claim {self.claim}: give `condition` with the verdict 'holds when', and only with it"
            )

    @property
    def verdict(self) -> Verdict:
        """The expected verdict, or inconclusive if a measurement is outside its interval."""
        return (
            self.expected if all(measurement.is_inside for measurement in self.measurements) else Verdict.INCONCLUSIVE
        )

    @property
    def text(self) -> str:
        """The verdict with its condition."""
        return f"{self.verdict} {self.condition}" if self.verdict is Verdict.HOLDS_WHEN else str(self.verdict)
