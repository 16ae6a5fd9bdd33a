"""`watch`: exact attention statistics of every head on some steps of a training loop.

In: a model, and a call of `step` after each optimizer step. Out: statistics to a logger and a folder, and alerts.
Attention is intercepted on measured steps only; the model computes with its own kernels, so gradients do not change.
Does not know: optimizers, trainers. Memory: O(heads), and O(n) while a call is measured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from attnscope.errors import SettingError, UnsupportedError
from attnscope.recording.call import Call
from attnscope.recording.hooks.coverage import Coverage
from attnscope.recording.hooks.eager import eagerly, uncompiled
from attnscope.recording.hooks.input_ids import observe_input_ids
from attnscope.recording.hooks.interception import intercept
from attnscope.telemetry.alerts import RULES, Alert, Rule, format_alert
from attnscope.telemetry.clip import ClippedHead, QKClip
from attnscope.telemetry.kept_calls import KeptCalls
from attnscope.telemetry.measurement import Measurement, measure, merge
from attnscope.telemetry.reduction import HeadShard, RankReduction, find_head_shard
from attnscope.telemetry.run_log import MAX_TRACES, STEPS, LoggedStep, RunLog, list_traces, read_steps, trace_name
from attnscope.telemetry.series import Series
from attnscope.telemetry.statistics import HeadStatistics, concatenate, to_statistics

logger = logging.getLogger(__name__)

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
    clipped: list[ClippedHead]


class Watch:
    """Measures attention on some steps of training. Use it as a context manager, and call `step` after each step.

    Forward passes in training mode count, all of a step together. What activation checkpointing computes again in the
    backward pass does not. Alerts are written to the log of the module.

    Args:
        model: Any PyTorch model; DDP, FSDP and torch.compile wrappers included.
        every: The first step and each multiple of this number are measured.
        log: Called with a dictionary of numbers and the step, as `wandb.log` and `mlflow.log_metrics` are; or a
            `SummaryWriter` of TensorBoard.
        folder: Where statistics and alerts of all heads are written; nowhere if None.
        rules: When to raise an alert.
        group: The ranks whose statistics are merged; all of them if None.
        step: The number of steps that are already done, for a run that resumes.
        tokenizer: Decodes the tokens of the traces that are kept with alerts.
        positions: The positions of this rank's queries in the sequence, (queries,), if each rank has some positions of
            a sequence and gathers the keys of all of them (context parallel); it may be set anew before each step.

    Raises:
        SettingError: An argument is not valid.
        CheckpointError: The folder of the run that resumes is damaged.
    """

    needs_lse = False

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
        tokenizer: Any = None,
        positions: Tensor | None = None,
    ) -> None:
        if every < 1:
            raise SettingError(f"watch: every must be at least 1, got {every}")
        self._compiled, model = model, uncompiled(model)
        self._model, self._every, self._log, self._tokenizer = model, every, _to_logger(log), tokenizer
        self._rank = dist.get_rank(group) if dist.is_initialized() else 0
        self._folder = None if folder is None else Path(folder)
        self._run_log = None if self._folder is None or self._rank else RunLog(self._folder, step)
        self._step, self.positions = step, positions
        self._names = {id(module): name for name, module in model.named_modules()}
        self.coverage = Coverage(model, self._names.values(), "watch")
        self._reduction = RankReduction(group)
        self._series = Series(rules)
        if self._folder is not None and (self._folder / STEPS).exists():
            self._series.replay(logged for logged in read_steps(self._folder) if logged.step <= step)
        self._found: dict[str, Measurement] = {}
        self._shards: dict[str, HeadShard] = {}
        self._kept = KeptCalls()
        self._clip: QKClip | None = None
        self._calls: list[Call] | None = None
        self._hooks = ExitStack()
        self._is_measuring = False

    def __enter__(self) -> Watch:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()
        if self._run_log is not None:
            self._run_log.close()

    @property
    def num_steps(self) -> int:
        """The number of steps that are done."""
        return self._step

    def step(self) -> Report | None:
        """End a step of training, after that of the optimizer; returns its statistics if it was measured.

        Raises:
            UnsupportedError: The model computed attention that cannot be measured exactly, or none at all; or ranks
                measured different layers; or a layer cannot be clipped.
        """
        self._step += 1
        report = self._report() if self._is_measuring else None
        self._begin()
        return report

    def clip(self, limit: float = 100.0) -> None:
        """From the next measured step on, scale weights of heads whose largest logit is above a limit (QK-clip).

        Call it before the first forward pass of a step. The weights of queries and keys are each multiplied by the
        square root of limit / largest logit; in grouped-query attention, for all heads of a group, by its largest one.
        All layers are proven first: weights are scaled by powers of two, and logits computed again and compared.

        Args:
            limit: The largest logit that a head may have.

        Raises:
            SettingError: The limit is not a positive number.
        """
        self._clip = QKClip(limit, self._run)
        self._begin()

    def owns(self, module: nn.Module) -> bool:
        """Whether calls of a module are measured: not those that are computed again for the backward pass."""
        return id(module) in self._names and torch._C._current_graph_task_id() == -1

    def on_attention(self, module: nn.Module, call: Call, reference: object) -> None:
        """Measure a call, if the model is training."""
        if self._calls is not None:
            self._calls.append(call)
            return
        if not self._model.training:
            return
        if isinstance(call.query, DTensor):
            raise UnsupportedError(
                "watch: queries are a DTensor, as in PyTorch's context_parallel, so this rank does not see all keys of "
                "a query. Measured are calls on plain tensors: with parallelize_module, use_local_output; for context "
                "parallel, gathered keys"
            )
        name, found = self._names[id(module)], measure(call, self.positions)
        self._shards[name] = find_head_shard(module)
        if self._folder is not None and self.positions is None:  # a trace shows consecutive positions
            self._kept.add(name, call, found)
        if self._clip is not None:
            self._clip.note(name, module, call.query.device)
        self._found[name] = merge(self._found[name], found) if name in self._found else found

    def on_handwritten(self, module: nn.Module | None) -> None:
        """Note a module that computes attention which cannot be measured."""
        if module is not None and self.owns(module):
            self.coverage.note_handwritten(self._names[id(module)], module)

    def _begin(self) -> None:
        """Intercept attention if the next step is to be measured."""
        self._hooks.close()
        self._found = {}
        self._kept.clear()
        self.coverage.reset()
        upcoming = self._step + 1
        self._is_measuring = upcoming == 1 or upcoming % self._every == 0
        if not self._is_measuring:
            return
        self._hooks.enter_context(eagerly(self._compiled, "watch"))
        self._hooks.enter_context(intercept(self._model, self))
        if self._folder is not None:
            self._hooks.enter_context(observe_input_ids(self._model, self, self._kept.note_ids))
        if self._clip is not None and not self._clip.is_proven:
            self._hooks.enter_context(self._clip.collect_inputs(self._model))

    def _run(self, function: Callable[[], object]) -> list[Call]:
        """Call a function, and return the attention calls that it made."""
        self._calls = []
        try:
            function()
            return self._calls
        finally:
            self._calls = None

    def _report(self) -> Report:
        self.coverage.check(self._found, finished=True)
        found = self._reduction.reduce(self._found, self._shards)
        layers = {name: to_statistics(part) for name, part in found.items()}
        alerts = [self._keep(alert) for alert in self._series.add(LoggedStep(self._step, layers))]
        clipped: list[ClippedHead] = []
        if self._clip is not None:
            self._clip.prove()
            clipped = self._clip.apply(layers)
        if self._run_log is not None:
            self._run_log.write(self._step, layers, alerts)
        if not self._rank:
            for alert in alerts:
                logger.warning("watch: %s", format_alert(alert))
            if self._log is not None:
                self._log({**to_metrics(layers), "attention/alerts": len(alerts)}, self._step)
        return Report(self._step, self._series.heads, concatenate(list(layers.values())), alerts, clipped)

    def _keep(self, alert: Alert) -> Alert:
        """Save the queries and keys of the head of an alert, on the rank that has them."""
        if self._folder is None or alert.rank != self._rank or alert.layer not in self._found:
            return alert
        shard, heads = self._shards[alert.layer], len(self._found[alert.layer].maxima.logit)
        kind, first_head = type(self._model).__name__, shard.rank * heads
        trace = self._kept.trace(alert.layer, alert.head, first_head, kind, self._tokenizer)
        if trace is None or len(list_traces(self._folder)) >= MAX_TRACES:
            return alert
        name = trace_name(alert)
        trace.save(self._folder / name)
        return alert._replace(trace=name)


def watch(
    model: nn.Module,
    *,
    every: int = 50,
    log: Logger | SummaryWriter | None = None,
    folder: str | Path | None = None,
    **options: Any,
) -> Watch:
    """Measure the attention of a model on some steps of your training loop.

    Args:
        model: Any PyTorch model.
        every: The first step and each multiple of this number are measured.
        log: Called with a dictionary of numbers and the step, such as `wandb.log`; or a `SummaryWriter`.
        folder: Where statistics and alerts are written, for `attnscope watch` and `attnscope explore`.
        **options: Those of `Watch`: `rules`, `group`, `step`, `tokenizer`, `positions`.

    Returns:
        A context manager; call its `step` after each step of the optimizer.

    >>> model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2, batch_first=True)})
    >>> x = torch.ones(1, 5, 8)
    >>> with watch(model, every=1) as watching:
    ...     _ = model["attention"](x, x, x)
    ...     report = watching.step()
    >>> report.heads, report.statistics.entropy.round(3)
    ([('attention', 0), ('attention', 1)], array([1.609, 1.609]))
    """
    return Watch(model, every=every, log=log, folder=folder, **options)


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
