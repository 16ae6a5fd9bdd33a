"""`watch`: exact attention statistics of every head on some steps of a training loop.

In: a model, and a call of `step` after each optimizer step. Out: statistics to a logger and a folder, and alerts.
Attention is intercepted on measured steps only; the model computes with its own kernels, so gradients do not change.
Does not know: optimizers, trainers. Memory: O(heads), and O(n) while a call is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from attnscope.errors import SettingError
from attnscope.recording.call import Call
from attnscope.recording.hooks.coverage import Coverage
from attnscope.recording.hooks.eager import eagerly, uncompiled
from attnscope.recording.hooks.interception import intercept
from attnscope.telemetry.alerts import RULES, Alert, AlertLog, History, Rule
from attnscope.telemetry.measurement import Measurement, measure, merge
from attnscope.telemetry.reduction import reduce_ranks
from attnscope.telemetry.run_log import RunLog
from attnscope.telemetry.statistics import HeadStatistics, concatenate, to_statistics

Logger = Callable[[dict[str, float], int], object]


@runtime_checkable
class SummaryWriter(Protocol):
    """What TensorBoard's writer has."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


class Report(NamedTuple):
    """The statistics of one measured step."""

    step: int
    heads: list[tuple[str, int]]  #: layer and head of each entry of the statistics
    statistics: HeadStatistics
    alerts: list[Alert]


class Watch:
    """Measures attention on some steps of training. Use it as a context manager, and call `step` after each step.

    Forward passes in training mode count, all of a step together. What activation checkpointing computes again in the
    backward pass does not.

    Args:
        model: Any PyTorch model; DDP, FSDP and torch.compile wrappers included.
        every: The first step and each multiple of this number are measured.
        log: Called with a dictionary of numbers and the step, as `wandb.log` and `mlflow.log_metrics` are; or a
            `SummaryWriter` of TensorBoard.
        folder: Where statistics and alerts of all heads are written; nowhere if None.
        rules: When to raise an alert.
        group: The ranks whose statistics are merged; all of them if None.
        step: The number of steps that are already done, for a run that resumes.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 50,
        log: Logger | SummaryWriter | None = None,
        folder: str | Path | None = None,
        rules: Sequence[Rule] = RULES,
        group: dist.ProcessGroup | None = None,
        step: int = 0,
    ) -> None:
        if every < 1:
            raise SettingError(f"watch: every must be at least 1, got {every}")
        self._compiled, model = model, uncompiled(model)
        self._model, self._every, self._log, self._rules, self._group = model, every, _to_logger(log), rules, group
        self._is_main = not dist.is_initialized() or dist.get_rank(group) == 0
        self._folder = None if folder is None or not self._is_main else RunLog(Path(folder), step)
        self._step = step
        self._names = {id(module): name for name, module in model.named_modules()}
        self.coverage = Coverage(model, self._names.values())
        self._found: dict[str, Measurement] = {}
        self._hooks = ExitStack()
        self._is_measuring = False
        self._history = History()
        self._alerts: AlertLog | None = None

    needs_lse = False

    def __enter__(self) -> Watch:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()
        if self._folder is not None:
            self._folder.close()

    @property
    def num_steps(self) -> int:
        """The number of steps that are done."""
        return self._step

    def step(self) -> Report | None:
        """End a step of training; returns its statistics if it was measured."""
        self._step += 1
        report = self._report() if self._is_measuring else None
        self._begin()
        return report

    def owns(self, module: nn.Module) -> bool:
        """Whether calls of a module are measured: not those that are computed again for the backward pass."""
        return id(module) in self._names and torch._C._current_graph_task_id() == -1

    def on_attention(self, module: nn.Module, call: Call, _: object) -> None:
        """Measure a call, if the model is training."""
        if not self._model.training:
            return
        name, found = self._names[id(module)], measure(call)
        self._found[name] = merge(self._found[name], found) if name in self._found else found

    def on_handwritten(self, module: nn.Module | None) -> None:
        """Note a module that computes attention which cannot be measured."""
        if module is not None and self.owns(module):
            self.coverage.note_handwritten(self._names[id(module)], module)

    def _begin(self) -> None:
        """Intercept attention if the next step is to be measured."""
        self._hooks.close()
        self._found = {}
        self.coverage.reset()
        upcoming = self._step + 1
        self._is_measuring = upcoming == 1 or upcoming % self._every == 0
        if self._is_measuring:
            self._hooks.enter_context(eagerly(self._compiled, "watch"))
            self._hooks.enter_context(intercept(self._model, self))

    def _report(self) -> Report:
        self.coverage.check(self._found, finished=True)
        found = reduce_ranks(self._found, self._group)
        layers = {name: to_statistics(part) for name, part in found.items()}
        heads = [(name, head) for name, part in layers.items() for head in range(len(part.max_logit))]
        statistics = concatenate(list(layers.values()))
        self._history.add(self._step, statistics)
        if self._alerts is None:
            self._alerts = AlertLog(heads, self._rules)
        report = Report(self._step, heads, statistics, self._alerts.check(self._history))
        if self._folder is not None:
            self._folder.write(self._step, layers, report.alerts)
        if self._log is not None and self._is_main:
            self._log(to_metrics(layers), self._step)
        return report


def _to_logger(log: Logger | SummaryWriter | None) -> Logger | None:
    if not isinstance(log, SummaryWriter):
        return log

    def add_scalars(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            log.add_scalar(name, value, step)

    return add_scalars


def to_metrics(layers: Mapping[str, HeadStatistics]) -> dict[str, float]:
    """Numbers for a logger: the most extreme head of each layer, and of all layers."""
    found = {f"attention/{name}": part for name, part in layers.items()}
    found["attention"] = concatenate(list(layers.values()))
    return {
        f"{prefix}/{name}": float(value) for prefix, part in found.items() for name, value in extremes(part).items()
    }


def extremes(part: HeadStatistics) -> dict[str, Any]:
    """The most extreme values over heads."""
    return {
        "max_logit": np.max(part.max_logit),
        "entropy": np.mean(part.entropy),
        "entropy_low": np.min(part.entropy_low),
        "collapsed": np.max(part.collapsed),
        "sink_weight": np.mean(part.sink_weight),
        "max_query_norm": np.max(part.max_query_norm),
        "max_key_norm": np.max(part.max_key_norm),
    }
