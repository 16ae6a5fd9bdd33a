"""`WatchedRunView`: a watched training run as the explorer shows it: heads down, steps across, and alerts.

In: the folder of a run, which may still be written. Out: values for JSON; undefined numbers are null.
Does not know: HTTP. Memory: that of the run, and one table.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import SettingError
from attnscope.heads.printing import shorten_names
from attnscope.recording import Trace, open_trace
from attnscope.telemetry.alerts import Alert
from attnscope.telemetry.run_reader import HeadName, RunReader, Values
from attnscope.telemetry.run_summary import rank_heads

STATISTICS = {
    "max_logit": "the largest attention logit of any query and key",
    "entropy": "mean entropy of the attention weights of a query, in nats",
    "entropy_low": "the entropy that 5 % of the queries are below, in nats",
    "collapsed": "share of queries with an entropy below 0.1 nats",
    "sink_weight": "mean weight on the first key",
    "max_query_norm": "the largest norm of a query",
    "max_key_norm": "the largest norm of a key",
}
"""The statistics that are shown, and their meaning."""
LOWEST = ("entropy", "entropy_low")
"""Statistics whose low values are of interest: columns of several steps show the lowest."""
PLACE = ("sequence", "query", "key")  # of the largest logit
MAX_CELLS, MAX_COLUMNS = 2**20, 4096
MAX_ALERTS = 1000
DIGITS = 5


class WatchedRunView:
    """An open run; every request reads what was appended since the last."""

    def __init__(self, folder: str | Path, name: str) -> None:
        self.name, self._run, self._lock = name, RunReader(folder), threading.Lock()
        self.statistics = tuple(STATISTICS)
        with self._lock:
            self._run.update()

    def about(self) -> dict[str, Any]:
        """Return all heads, the worst first in `order`, and the last alerts."""
        with self._lock:
            self._run.update()
            run = self._run
            first = max(0, len(run.alerts) - MAX_ALERTS)
            rows = {head: row for row, head in enumerate(run.heads)}
            return {
                "name": self.name,
                "steps": {"count": len(run.steps), "first": run.steps[:1], "last": run.steps[-1:]},
                "statistics": [
                    {"name": name, "meaning": meaning, "lowest": name in LOWEST} for name, meaning in STATISTICS.items()
                ],
                "heads": self._heads(),
                "order": rank_heads(run).tolist(),
                "num_alerts": len(run.alerts),
                "alerts": [self._alert(at, rows) for at in range(first, len(run.alerts))],
            }

    def table(self, statistic: str, columns: int) -> dict[str, Any]:
        """Return a statistic of all heads in at most so many columns, each of one or several steps."""
        with self._lock:
            run = self._run
            starts = _starts(len(run.steps), min(columns, MAX_CELLS // max(1, len(run.heads)) or 1))
            return {
                "steps": _step_ranges(run.steps, starts),
                "values": [_to_json(row) for row in _reduce(run.values(statistic), starts, statistic).T],
                "not_finite": np.argwhere(_any(run.not_finite(), starts).T).tolist(),
            }

    def head(self, row: int, columns: int) -> dict[str, Any]:
        """Return all statistics of one head in at most so many columns, and where its largest logit is."""
        with self._lock:
            run = self._run
            if row >= len(run.heads):
                raise SettingError(f"this run has {len(run.heads)} heads; reload the page")
            starts = _starts(len(run.steps), columns)
            places = {name: np.nan_to_num(run.values(f"max_{name}")[:, row], nan=-1) for name in PLACE}
            logits = run.values("max_logit")[:, row]
            at = [start + _largest(part) for start, part in zip(starts, np.split(logits, starts[1:]), strict=True)]
            return {
                "steps": _step_ranges(run.steps, starts),
                "values": {
                    name: _to_json(_reduce(run.values(name)[:, [row]], starts, name)[:, 0]) for name in STATISTICS
                },
                "places": [
                    {"step": run.steps[one], **{name: int(part[one]) for name, part in places.items()}} for one in at
                ],
            }

    def open_alert(self, number: int) -> tuple[Trace, Alert, str] | None:
        """Open the trace of an alert; None if there is no such alert, or no trace of it was kept.

        Returns:
            The trace, the alert, and the name of its head and step.
        """
        with self._lock:
            alert = self._run.alerts[number] if number < len(self._run.alerts) else None
        path = None if alert is None else self._run.find_trace(alert)
        if alert is None or path is None:
            return None
        return open_trace(path), alert, f"{self._names()[alert.layer]}.{alert.head} at step {alert.step}"

    def _alert(self, number: int, rows: dict[HeadName, int]) -> dict[str, Any]:
        alert = self._run.alerts[number]
        fields = {name: getattr(alert, name) for name in ("step", "rule", "reason", *PLACE)}
        row = rows.get(HeadName(alert.layer, alert.head))
        return {"number": number, "row": row, **fields, "has_trace": self._run.find_trace(alert) is not None}

    def _names(self) -> dict[str, str]:
        return shorten_names([head.layer for head in self._run.heads])

    def _heads(self) -> list[dict[str, Any]]:
        names = self._names()
        return [
            {"layer": head.layer, "head": head.head, "name": f"{names[head.layer]}.{head.head}"}
            for head in self._run.heads
        ]


def _starts(steps: int, columns: int) -> NDArray[np.int64]:
    """The first step of each of at most so many columns."""
    return np.arange(min(steps, columns)) * steps // max(1, min(steps, columns))


def _step_ranges(steps: list[int], starts: NDArray[np.int64]) -> list[list[int]]:
    """The first and the last step of each column."""
    ends = [*starts.tolist(), len(steps)]
    return [[steps[start], steps[stop - 1]] for start, stop in pairwise(ends)]


def _reduce(values: Values, starts: NDArray[np.int64], statistic: str) -> Values:
    """The largest value of each column, or the lowest; (steps, heads) to (columns, heads)."""
    if not len(starts):
        return values
    return (np.fmin if statistic in LOWEST else np.fmax).reduceat(values, starts, axis=0)


def _any(flags: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.logical_or.reduceat(flags, starts, axis=0) if len(starts) else flags


def _largest(values: Values) -> int:
    """The index of the largest number; 0 if there is none."""
    return 0 if np.isnan(values).all() else int(np.nanargmax(values))


def _to_json(values: Values) -> list[float | None]:
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]
