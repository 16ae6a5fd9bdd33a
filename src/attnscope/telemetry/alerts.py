"""Rules that raise an alert for a head, from the statistics of the last measured steps.

In: a `History`. Out: findings with a value and a reason; an `AlertLog` reports each once until it is over.
Does not know: models, where statistics come from. Memory: the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from attnscope.telemetry.statistics import Array, HeadStatistics


class History:
    """The statistics of the last measured steps, all heads of all layers side by side."""

    def __init__(self, length: int) -> None:
        self._steps: deque[int] = deque(maxlen=length)
        self._statistics: deque[HeadStatistics] = deque(maxlen=length)

    def add(self, step: int, statistics: HeadStatistics) -> None:
        """Append a step."""
        self._steps.append(step)
        self._statistics.append(statistics)

    @property
    def steps(self) -> Array:
        """The measured steps, (steps,)."""
        return np.array(self._steps, dtype=np.float64)

    @property
    def last(self) -> HeadStatistics:
        """The statistics of the last step."""
        return self._statistics[-1]

    def values(self, name: str) -> Array:
        """One statistic of all steps, (steps, heads)."""
        return np.stack([getattr(statistics, name) for statistics in self._statistics])


class Finding(NamedTuple):
    """What a rule found in the last step."""

    head: int  #: among all heads of all layers
    value: float
    reason: str


class Rule(Protocol):
    """Looks for heads that need attention."""

    @property
    def name(self) -> str:
        """The name of the rule, which its alerts carry."""
        ...

    def check(self, history: History) -> Iterator[Finding]:
        """The heads to which the rule applies in the last step.

        Args:
            history: The measurements so far.

        Returns:
            One finding per head.
        """
        ...


@dataclass(frozen=True)
class LargeLogit:
    """The largest logit of a head is above a limit."""

    limit: float = 100.0
    name: str = "large logit"

    def check(self, history: History) -> Iterator[Finding]:
        """The heads above the limit."""
        found = history.last.max_logit
        for head in np.flatnonzero(found > self.limit):
            yield Finding(int(head), float(found[head]), f"max logit {found[head]:.1f} is above {self.limit:g}")


@dataclass(frozen=True)
class GrowingLogit:
    """The largest logit of a head doubles within a number of steps, by a least-squares fit of its logarithm."""

    within: int = 500
    above: float = 50.0  # half the limit of LargeLogit, which it would reach in this time
    points: int = 8
    name: str = "growing logit"

    def check(self, history: History) -> Iterator[Finding]:
        """The heads whose logits double within `within` steps over the last `points` measured steps."""
        steps, logits = history.steps[-self.points :], history.values("max_logit")[-self.points :]
        if len(steps) < self.points:
            return
        usable = (logits > 0).all(0) & np.isfinite(logits).all(0) & (logits[-1] > self.above)
        slopes, fit = _fit(steps, np.log2(np.where(usable, logits, 1.0)))
        for head in np.flatnonzero(usable & (slopes * self.within > 1) & (fit > 0.5)):
            doubling = 1 / slopes[head]
            yield Finding(
                int(head),
                float(logits[-1, head]),
                f"max logit {logits[-1, head]:.1f} doubles every {doubling:.0f} steps",
            )


def _fit(steps: Array, values: Array) -> tuple[Array, Array]:
    """Slope and explained share of the variance of a straight line through values (steps, heads)."""
    x, y = steps - steps.mean(), values - values.mean(0)
    slopes = x @ y / (x @ x)
    total = np.square(y).sum(0)
    left = np.square(y - np.outer(x, slopes)).sum(0)
    return slopes, 1 - np.divide(left, total, out=np.ones_like(total), where=total > 0)


@dataclass(frozen=True)
class EntropyCollapse:
    """The share of rows with nearly all weight on one key has risen by much."""

    rise: float = 0.5
    points: int = 32
    name: str = "entropy collapse"

    def check(self, history: History) -> Iterator[Finding]:
        """The heads whose share of collapsed rows rose by `rise` over the last `points` measured steps."""
        shares = history.values("collapsed")[-self.points :]
        before = np.nanmin(shares, axis=0, initial=1.0)
        for head in np.flatnonzero(shares[-1] - before >= self.rise):
            reason = f"{shares[-1, head]:.0%} of the queries attend to one key, up from {before[head]:.0%}"
            yield Finding(int(head), float(shares[-1, head]), reason)


@dataclass(frozen=True)
class NotFinite:
    """A query or key contains NaN or infinity."""

    name: str = "not finite"

    def check(self, history: History) -> Iterator[Finding]:
        """The heads with such a query or key."""
        for head in np.flatnonzero(np.isnan(history.last.max_logit)):
            yield Finding(int(head), float("nan"), "a query or key contains NaN or infinity")


@dataclass(frozen=True)
class DeadHead:
    """A head gives nearly all of its weight to the first key, in all of the last measured steps."""

    share: float = 0.99
    points: int = 16
    name: str = "dead head"

    def check(self, history: History) -> Iterator[Finding]:
        """The heads that attend to nothing but the first key."""
        shares = history.values("sink_weight")[-self.points :]
        if len(shares) == self.points:
            for head in np.flatnonzero((shares >= self.share).all(0)):
                reason = f"{shares[-1, head]:.1%} of the weight is on the first key for {self.points} measured steps"
                yield Finding(int(head), float(shares[-1, head]), reason)


RULES: tuple[Rule, ...] = (NotFinite(), LargeLogit(), GrowingLogit(), EntropyCollapse(), DeadHead())
"""The rules that `watch` applies by default."""


class Alert(NamedTuple):
    """A rule that applies to a head since this step."""

    step: int
    rule: str
    layer: str
    head: int
    value: float
    reason: str
    rank: int  #: where the largest logit is: the rank of the process
    sequence: int  #: row of its batch
    query: int  #: position of its query
    key: int  #: position of its key
    trace: str | None = None  #: the folder of the queries and keys of this head and sequence, if they were kept


def format_alert(alert: Alert) -> str:
    """An alert as a line of text.

    >>> format_alert(Alert(50, "large logit", "layers.3", 1, 120.0, "max logit 120.0 is above 100", 0, 2, 17, 4))
    'step 50, layers.3 head 1: max logit 120.0 is above 100 (rank 0, sequence 2, query 17, key 4)'
    """
    place = f"rank {alert.rank}, sequence {alert.sequence}, query {alert.query}, key {alert.key}"
    return f"step {alert.step}, {alert.layer} head {alert.head}: {alert.reason} ({place})"


COOL_DOWN = 16
"""A finding is over if a rule has not found it for so many measured steps; it may come and go in between."""


class AlertLog:
    """Applies rules, and reports a finding once until it is over.

    Args:
        heads: The layer and the head of each entry of the statistics.
        rules: The rules to apply.
    """

    def __init__(self, heads: Sequence[tuple[str, int]], rules: Sequence[Rule] = RULES) -> None:
        self._heads, self._rules = heads, rules
        self._num_steps = 0
        self._last_found: dict[tuple[str, int], int] = {}

    def check(self, history: History) -> list[Alert]:
        """The alerts that are new in the last step."""
        step, last = int(history.steps[-1]), history.last
        found = {(rule.name, finding.head): finding for rule in self._rules for finding in rule.check(history)}
        over = self._num_steps - COOL_DOWN - 1
        new = [(key[0], finding) for key, finding in found.items() if self._last_found.get(key, over) <= over]
        self._last_found |= dict.fromkeys(found, self._num_steps)
        self._num_steps += 1
        places = (last.max_rank, last.max_sequence, last.max_query, last.max_key)
        return [
            Alert._make([step, rule, *self._heads[one.head], one.value, one.reason, *_at(places, one.head), None])
            for rule, one in new
        ]


def _at(places: Sequence[Array], head: int) -> list[int]:
    return [int(part[head]) for part in places]
