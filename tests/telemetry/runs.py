"""Folders of watched runs with made numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.telemetry.alerts import Alert
from attnscope.telemetry.run_log import RunLog
from attnscope.telemetry.statistics import HeadStatistics

LAYERS = ("model.layers.0.self_attn", "model.layers.1.self_attn")


def make_statistics(logits: Sequence[float] | np.ndarray, **given: Sequence[float]) -> HeadStatistics:
    """The statistics of a layer: these logits, and for each head its number in the other fields."""
    numbers = np.arange(len(logits), dtype=float)
    values = dict.fromkeys(HeadStatistics._fields, numbers) | {"collapsed": numbers / 10}
    return HeadStatistics(
        **values | {"max_logit": np.array(logits)} | {name: np.array(one) for name, one in given.items()}
    )


def make_alert(step: int, head: int = 1, **given: Any) -> Alert:
    """An alert about a head of the second layer."""
    fields: dict[str, Any] = dict.fromkeys(Alert._fields, 0) | Alert._field_defaults
    named = {"step": step, "rule": "large logit", "layer": LAYERS[1], "head": head, "query": 11, "key": 3}
    return Alert(**fields | named | {"value": 123.4, "reason": "max logit 123.4 is above 100"} | given)


def write_steps(log: RunLog, logits: np.ndarray, steps: Sequence[int], alerts: Sequence[Alert] = ()) -> None:
    """Write logits (steps, heads of both layers)."""
    for step, row in zip(steps, logits, strict=True):
        layers = {name: make_statistics(part) for name, part in zip(LAYERS, np.split(row, 2), strict=True)}
        log.write(step, layers, [alert for alert in alerts if alert.step == step])


def write_run(folder: Path, logits: np.ndarray, *, every: int = 10, alerts: Sequence[Alert] = ()) -> Path:
    """Write a finished run; the steps are the multiples of `every`."""
    log = RunLog(folder)
    write_steps(log, logits, range(every, every * len(logits) + 1, every), alerts)
    log.close()
    return folder
