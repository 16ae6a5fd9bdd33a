"""`RunReader`: a watched run as arrays over steps and heads, while it is written or afterwards.

In: the folder of a run. Out: steps, heads, one array for each statistic, and alerts.
Files are untrusted: every field is checked. Does not know: terminals, browsers. Memory: that of the arrays, in fp32.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import CheckpointError, SettingError
from attnscope.models.json_fields import Fields
from attnscope.telemetry.alerts import Alert
from attnscope.telemetry.log_follower import LogFollower, LogReplacedError, NewLine
from attnscope.telemetry.run_log import ADVICE, ALERTS, STEPS, trace_name
from attnscope.telemetry.statistics import HeadStatistics

MAX_HEADS = 100_000
NOT_LOGGED = ("trace",)  # of an alert: a folder that may be written later
STATISTICS = HeadStatistics._fields

Values = NDArray[np.float32]


class HeadName(NamedTuple):
    """A head of the model."""

    layer: str
    head: int


class _Row(NamedTuple):
    """The statistics of one step, and the columns that they belong to."""

    columns: NDArray[np.int64]
    values: Values  # (statistics, heads)


def is_watched_run(folder: str | Path) -> bool:
    """Whether this is the folder of a watched run."""
    return (Path(folder) / STEPS).is_file()


class RunReader:
    """Reads the folder of a run; `update` reads what was appended since.

    Args:
        folder: The folder that `watch` writes.

    Raises:
        SettingError: It is not the folder of a watched run.
    """

    def __init__(self, folder: str | Path) -> None:
        if not is_watched_run(folder):
            what = f"has no {STEPS}" if Path(folder).is_dir() else "is not a folder"
            raise SettingError(
                f"{folder} is not the folder of a watched run: it {what}; write one with watch(model, folder=...)"
            )
        self.folder = Path(folder)
        self._clear()

    def _clear(self) -> None:
        self._logs = [LogFollower(self.folder / name, advice=ADVICE) for name in (STEPS, ALERTS)]
        self.steps: list[int] = []
        self.alerts: list[Alert] = []
        self._columns: dict[HeadName, int] = {}
        self._layouts: dict[tuple[tuple[str, int], ...], NDArray[np.int64]] = {}
        self._rows: list[_Row] = []

    @property
    def heads(self) -> list[HeadName]:
        """All heads that were measured, in the order of their columns."""
        return list(self._columns)

    def values(self, statistic: str) -> Values:
        """One statistic of all steps, (steps, heads); NaN where a head was not measured."""
        at = STATISTICS.index(statistic)
        found = np.full((len(self._rows), len(self._columns)), np.nan, np.float32)
        for row, (columns, values) in enumerate(self._rows):
            found[row, columns] = values[at]
        return found

    def not_finite(self) -> NDArray[np.bool_]:
        """Whether a query or key of a head contained NaN or infinity, (steps, heads).

        Its largest logit is then unknown, as is that of a head whose mask allows no key; but also a norm.
        """
        norms = self.values("max_query_norm") + self.values("max_key_norm")
        return np.isnan(self.values("max_logit")) & np.isnan(norms) & ~np.isnan(self.values("max_query"))

    def find_trace(self, alert: Alert) -> Path | None:
        """The folder of the trace of an alert, if it was kept; another rank may write it after the alert."""
        folder, path = self.folder.resolve(), (self.folder / trace_name(alert)).resolve()
        return path if path.is_dir() and folder in path.parents else None

    def update(self) -> bool:
        """Read what was appended; returns whether there is anything new.

        Raises:
            CheckpointError: A file cannot be read, or a line is damaged or invalid.
        """
        before = len(self.steps), len(self.alerts)
        while True:
            try:
                self._read()
            except LogReplacedError:
                self._clear()
                before = -1, -1
            else:
                return before != (len(self.steps), len(self.alerts))

    def _read(self) -> None:
        steps, alerts = self._logs
        for line in steps.read():
            self._add_step(line)
        for line in alerts.read():
            self.alerts.append(_parse_alert(line, self.folder / ALERTS))

    def _add_step(self, line: NewLine) -> None:
        source = f"{self.folder / STEPS}, line {line.number}"
        fields = Fields(line.fields, source=source, advice=ADVICE)
        step = fields.integer("step")
        if self.steps and step <= self.steps[-1]:
            raise CheckpointError(
                f"{source}: step {step:,} follows step {self.steps[-1]:,}, as if two runs wrote to this folder; give "
                "each run a folder of its own"
            )
        layers = fields.inner("layers")
        fields.finish()
        parts = {name: _parse_layer(layers.inner(name)) for name in layers.found}
        layout = tuple((name, part.shape[1]) for name, part in parts.items())
        if layout not in self._layouts:
            self._layouts[layout] = self._add_columns(layout, source)
        empty = np.empty((len(STATISTICS), 0), np.float32)
        self._rows.append(_Row(self._layouts[layout], np.concatenate([empty, *parts.values()], 1)))
        self.steps.append(step)

    def _add_columns(self, layout: tuple[tuple[str, int], ...], source: str) -> NDArray[np.int64]:
        heads = [HeadName(name, head) for name, count in layout for head in range(count)]
        if len(self._columns.keys() | heads) > MAX_HEADS:
            raise CheckpointError(f"{source}: expected at most {MAX_HEADS:,} heads; {ADVICE}")
        return np.array([self._columns.setdefault(head, len(self._columns)) for head in heads], np.int64)


def _parse_layer(fields: Fields) -> Values:
    """The statistics of one layer, (statistics, heads)."""
    columns = [fields.array(name, maximum=MAX_HEADS) for name in STATISTICS]
    fields.finish()
    for name, column in zip(STATISTICS, columns, strict=True):
        if len(column) != len(columns[0]) or any(type(value) not in (int, float, type(None)) for value in column):
            raise fields.invalid(name, column, f"{len(columns[0])} numbers")
    with np.errstate(over="ignore"):
        try:
            return np.array(columns, np.float64).astype(np.float32)
        except OverflowError as error:  # an integer beyond fp64
            raise fields.invalid(STATISTICS[0], columns[0], "finite numbers") from error


def _parse_alert(line: NewLine, path: Path) -> Alert:
    fields = Fields(line.fields, source=f"{path}, line {line.number}", advice=ADVICE)
    found = {
        name: _parse_field(fields, name, kind) for name, kind in Alert.__annotations__.items() if name not in NOT_LOGGED
    }
    fields.finish()
    return Alert(**found)


def _parse_field(fields: Fields, name: str, kind: object) -> Any:
    """A field of an alert by its annotation."""
    kind = getattr(kind, "__forward_arg__", kind)
    if kind == "int":
        return fields.integer(name, minimum=-1)
    if kind == "float":
        return math.nan if fields.is_null(name) else fields.number(name, minimum=-math.inf)
    return fields.string(name)
