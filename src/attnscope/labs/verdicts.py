"""Verdicts on claims, and the numbers that decide them.

In: numbers, each with the margin it has to keep for a verdict to stand. Out: decisions. A verdict is written down by
whoever wrote the experiment; a run can only confirm it, or say that it is not settled: numbers outside of their margins
never pass for the other answer.
Does not know: experiments. Memory: a few numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from attnscope.errors import SettingError


class Verdict(StrEnum):
    """What a run has to say about a claim."""

    HOLDS = "holds"
    HOLDS_WHEN = "holds when"
    DOES_NOT_HOLD = "does not hold"
    NOT_SHOWN = "not shown by this evidence"
    UNSETTLED = "not settled by this run"
    """A number left its margin."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A measured number and the margin in which it decides.

    >>> Number(name="share", value=0.47, low=0.4, high=0.55).is_inside
    True
    >>> Number(name="loss", value=float("nan"), high=1.0).is_inside
    False
    """

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_inside(self) -> bool:
        """Whether it keeps its margin; NaN keeps none."""
        return self.low <= self.value <= self.high

    @property
    def margin(self) -> str:
        """The margin in words.

        >>> Number(name="loss", value=0.2, high=1.0).margin, Number(name="share", value=0.5, low=0.4, high=0.6).margin
        ('at most 1', '0.4 to 0.6')
        >>> Number(name="weights", value=2359296, low=2359296, high=2359296).margin
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
    """One claim, decided: the verdict, under which condition, why, and the numbers."""

    claim: str
    expected: Verdict
    because: str
    numbers: tuple[Number, ...]
    when: str = ""

    def __post_init__(self) -> None:
        if not self.numbers:
            raise SettingError(f"decide: claim {self.claim} has a verdict without a number; give one with its margin")
        if any(math.isinf(number.low) and math.isinf(number.high) for number in self.numbers):
            raise SettingError(f"decide: claim {self.claim} has a number without a margin, which could decide nothing")
        if (self.expected is Verdict.HOLDS_WHEN) != bool(self.when):
            raise SettingError(f"decide: claim {self.claim}: `when` goes with the verdict 'holds when', and only there")

    @property
    def verdict(self) -> Verdict:
        """The verdict, as long as every number keeps its margin."""
        return self.expected if all(number.is_inside for number in self.numbers) else Verdict.UNSETTLED

    @property
    def words(self) -> str:
        """The verdict with its condition."""
        return f"{self.verdict} {self.when}" if self.verdict is Verdict.HOLDS_WHEN else str(self.verdict)
