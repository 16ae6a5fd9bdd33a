"""The folder of a watched run: statistics and alerts of every measured step.

    steps.jsonl         one line for each measured step, with a checksum
    alerts.jsonl        one line for each alert, with a checksum
    alerts/             traces of the heads of some alerts: their queries and keys in that step
    statistics.parquet  the same as steps.jsonl, one row for each step and head; written at the end

In: reports. Out: the files, and the reports again. A run that resumes keeps the lines up to its step.
Does not know: models, rules. Memory: O(heads) to write, the file to read.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnscope.atomic_files import write_atomically
from attnscope.errors import MissingExtraError
from attnscope.extras import import_extra
from attnscope.models.checked_log import damaged_line_error, encode_line, split_lines
from attnscope.telemetry.alerts import Alert
from attnscope.telemetry.log_follower import BLOCK_BYTES, LogFollower
from attnscope.telemetry.statistics import HeadStatistics

STEPS = "steps.jsonl"
ALERTS = "alerts.jsonl"
PARQUET = "statistics.parquet"
ADVICE = "copy the file again, or delete it to begin a new series"
DIGITS = 7  # of fp32
TRACES = "alerts"
MAX_TRACES = 64
"""Alerts beyond these have no trace."""


class LoggedStep(NamedTuple):
    """The statistics of one measured step by layer."""

    step: int
    layers: dict[str, HeadStatistics]


class RunLog:
    """Writes the folder of a run.

    Args:
        folder: The folder; it is made if it does not exist.
        step: The number of steps that are already done: lines of later steps are removed.

    Raises:
        CheckpointError: A line that is kept is damaged.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (STEPS, ALERTS):
            keep_up_to(folder / name, step)
        for trace in list_traces(folder):
            if int(trace.name.partition("_")[0]) > step:
                shutil.rmtree(trace)
        self._folder = folder
        self._steps, self._alerts = ((folder / name).open("ab") for name in (STEPS, ALERTS))

    def write(self, step: int, layers: Mapping[str, HeadStatistics], alerts: list[Alert]) -> None:
        """Write a measured step, and flush it: a run may be killed at any time."""
        for alert in alerts:
            fields = alert._asdict() | {"value": _to_json(alert.value)}
            del fields["trace"]  # another rank may have it: see `read_alerts`
            self._alerts.write(encode_line(fields))
        fields = {
            name: {field: [_to_json(value) for value in values] for field, values in part._asdict().items()}
            for name, part in layers.items()
        }
        self._alerts.flush()
        self._steps.write(encode_line({"step": step, "layers": fields}))
        self._steps.flush()

    def close(self) -> None:
        """Close the files, and write the table of all steps if pyarrow is installed."""
        self._steps.close()
        self._alerts.close()
        try:
            arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
        except MissingExtraError:
            return
        columns: dict[str, list[Any]] = {name: [] for name in ("step", "layer", "head", *HeadStatistics._fields)}
        for step, layers in read_steps(self._folder):
            for name, part in layers.items():
                heads = len(part.max_logit)
                columns["step"] += [step] * heads
                columns["layer"] += [name] * heads
                columns["head"] += range(heads)
                for field, values in part._asdict().items():
                    columns[field] += values.tolist()
        sink = arrow.BufferOutputStream()
        parquet.write_table(arrow.table(columns), sink)
        write_atomically(self._folder / PARQUET, sink.getvalue().to_pybytes())


def read_steps(folder: Path) -> Iterator[LoggedStep]:
    """Yield the measured steps of a run.

    Args:
        folder: The folder that `watch` wrote.

    Raises:
        CheckpointError: The file cannot be read, or a line is damaged.

    >>> import tempfile
    >>> import torch
    >>> from attnscope.telemetry import watch
    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with watch(model, every=1, folder=folder) as watching:
    ...         model(torch.arange(12)[None]).sum().backward()
    ...         report = watching.step()
    ...     [logged.step for logged in read_steps(Path(folder))]
    [1]
    """
    for _, fields in LogFollower(folder / STEPS, advice=ADVICE).read():
        layers = {
            name: HeadStatistics(*(np.array(part[field], dtype=np.float64) for field in HeadStatistics._fields))
            for name, part in fields["layers"].items()
        }
        yield LoggedStep(fields["step"], layers)


def read_alerts(folder: Path) -> Iterator[Alert]:
    """Yield the alerts of a run.

    Args:
        folder: The folder that `watch` wrote.

    Raises:
        CheckpointError: The file cannot be read, or a line is damaged.
    """
    for _, fields in LogFollower(folder / ALERTS, advice=ADVICE).read():
        value = fields.pop("value")
        alert = Alert(**fields, value=math.nan if value is None else value)
        name = trace_name(alert)
        yield alert._replace(trace=name) if (folder / name).is_dir() else alert


def trace_name(alert: Alert) -> str:
    """The folder of the trace of an alert, relative to that of the run."""
    layer = re.sub(r"[^\w.-]", "_", alert.layer)
    return f"{TRACES}/{alert.step:08}_{layer}_{alert.head}"


def list_traces(folder: Path) -> list[Path]:
    """The folders of traces of a run, by step."""
    found = (folder / TRACES).iterdir() if (folder / TRACES).is_dir() else ()
    return sorted(path for path in found if re.match(r"\d{8,}_", path.name) and path.is_dir())


def keep_up_to(path: Path, step: int) -> None:
    """Remove the lines of later steps, and an incomplete last line.

    Raises:
        CheckpointError: A line that would be kept is damaged.
    """
    if not path.exists():
        return
    kept = 0
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = next(split_lines(file.readline(BLOCK_BYTES)), None)
            if line is None or not line.is_ended:
                break
            if line.fields is None:
                raise damaged_line_error(path, number, ADVICE)
            if line.fields["step"] > step:
                break
            kept = file.tell()
    os.truncate(path, kept)


def _to_json(value: float) -> float | None:
    """A number with the digits of fp32; None if it is not finite, which JSON cannot say."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
