"""The heads of a watched run at one step, the worst first, and how those of two runs differ.

In: runs that were read. Out: numbers for each head. Does not know: how they are shown. Memory: O(steps x heads).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import SettingError
from attnscope.telemetry.alerts import Alert
from attnscope.telemetry.run_reader import STATISTICS, HeadName, RunReader, Values


class HeadSummary(NamedTuple):
    """A head of a run at one step."""

    name: HeadName
    statistics: dict[str, float]  #: by name; NaN if it was not measured
    is_finite: bool  #: whether all queries and keys are
    peak: float  #: its largest logit up to this step
    peak_step: int
    trend: Values  #: its largest logit at all steps up to this one
    broken: Values  #: the same with 1 where a query or key is not finite, else 0
    first_alert: Alert | None


class HeadDifference(NamedTuple):
    """A head of two runs at the same step."""

    first: HeadSummary
    second: HeadSummary

    @property
    def difference(self) -> float:
        """The largest logit of the second run minus that of the first."""
        return self.second.statistics["max_logit"] - self.first.statistics["max_logit"]

    @property
    def size(self) -> float:
        """How much they differ: infinitely if only one is finite."""
        if self.first.is_finite != self.second.is_finite:
            return np.inf
        return 0.0 if np.isnan(self.difference) else abs(self.difference)


class RunDifference(NamedTuple):
    """Two runs at the last step that both measured."""

    step: int
    heads: list[HeadDifference]  #: those that both runs have, the largest difference first


def rank_heads(run: RunReader, row: int = -1) -> NDArray[np.int64]:
    """The columns of all heads, the worst at a step first: not finite, then by the largest logit."""
    if not run.steps:
        return np.arange(0)
    logits = run.values("max_logit")[row]
    known = np.where(np.isnan(logits), -np.inf, logits)
    return np.lexsort((-known, ~run.not_finite()[row]))  # by the last key first


def summarize_run(run: RunReader, row: int = -1) -> list[HeadSummary]:
    """The heads of a run at one of its steps, in the order of `rank_heads`.

    Args:
        run: A run.
        row: The index of the step.
    """
    if not run.steps:
        return []
    rows = len(run.steps[: row + 1 or None])
    values = {name: run.values(name)[:rows] for name in STATISTICS}
    broken, logits = run.not_finite()[:rows], values["max_logit"]
    known = np.where(np.isnan(logits), -np.inf, logits)
    peaks, alerts = known.argmax(0), _first_alerts(run, run.steps[rows - 1])
    return [
        HeadSummary(
            name=run.heads[head],
            statistics={name: float(part[-1, head]) for name, part in values.items()},
            is_finite=not broken[-1, head],
            peak=float(logits[peaks[head], head]),
            peak_step=run.steps[peaks[head]],
            trend=logits[:, head],
            broken=broken[:, head].astype(np.float32),
            first_alert=alerts.get(run.heads[head]),
        )
        for head in rank_heads(run, row).tolist()
    ]


def compare_runs(first: RunReader, second: RunReader) -> RunDifference:
    """The heads of two runs at the last step that both measured.

    Raises:
        SettingError: They have no step or no head in common.
    """
    steps = sorted(set(first.steps) & set(second.steps))
    if not steps:
        raise SettingError(
            f"{first.folder} and {second.folder} have no measured step in common; watch both with the same every="
        )
    before, after = (
        {head.name: head for head in summarize_run(run, run.steps.index(steps[-1]))} for run in (first, second)
    )
    heads = [HeadDifference(before[name], after[name]) for name in before if name in after]
    if not heads:
        raise SettingError(
            f"{first.folder} and {second.folder} have no head in common: they watch layers such as "
            f"{first.heads[0].layer} and {second.heads[0].layer}"
        )
    heads.sort(key=lambda head: -head.size)
    return RunDifference(steps[-1], heads)


def shorten_series(values: Values, width: int) -> Values:
    """A series of at most `width` values: the largest of each of as many nearly equal parts; NaN if all are.

    >>> shorten_series(np.array([1, 5, 2, np.nan, np.nan, 3], np.float32), 3)
    array([5., 2., 3.], dtype=float32)
    """
    if len(values) <= width:
        return values
    starts = np.arange(width) * len(values) // width
    return np.fmax.reduceat(values, starts)


def _first_alerts(run: RunReader, step: int) -> dict[HeadName, Alert]:
    found: dict[HeadName, Alert] = {}
    for alert in run.alerts:
        if alert.step <= step:
            found.setdefault(HeadName(alert.layer, alert.head), alert)
    return found
