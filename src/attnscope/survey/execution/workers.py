"""Worker settings, and one worker that reads shards.

In: shards. Out: their partial results on disk, and a report about each. The number of workers does not change the
result of a survey; the number of threads and the device change only floating-point rounding.
Does not know: Ray, which shards are missing. Memory: the model, and one batch.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from attnscope.errors import SettingError
from attnscope.stores.retries import retry_access
from attnscope.survey.corpus.plan import Shard
from attnscope.survey.execution.shard_reader import ShardReader, read_shard
from attnscope.survey.folder import SurveyFolder
from attnscope.survey.partials.partial import PartialResult
from attnscope.survey.partials.partial_files import save_partial


class AccessSettingError(SettingError):
    """A machine cannot access what a worker needs, which another machine perhaps can."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many processes run a survey, and with which resources.

    Raises:
        SettingError: A number is out of range.
    """

    count: int = 1
    """The number of worker processes. A single worker is this process, unless `address` is given."""

    threads: int | None = None
    """Threads per worker; None divides the cores of this machine among the workers."""

    cpus: float | None = None
    """CPUs per worker that Ray reserves; None reserves one per thread."""

    gpus: float = 0.0
    """GPUs per worker that Ray reserves, at most 1: a model runs on one device. Fractions share one GPU."""

    device: str = "cpu"
    """The device of the model: cpu, cuda, cuda:1, ..."""

    address: str | None = None
    """The address of a running Ray cluster; None starts a local one if there are several workers."""

    start_timeout: float = 900.0
    """Seconds to wait for Ray to start a first worker: a cluster that scales from zero nodes needs minutes."""

    def __post_init__(self) -> None:
        for name, minimum in (("count", 1), ("threads", 1), ("gpus", 0), ("start_timeout", 0)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                shown = "workers" if name == "count" else name
                raise SettingError(f"survey: {shown} must be at least {minimum}, got {value}")
        if self.gpus > 1:
            raise SettingError(
                f"survey: gpus must be at most 1 per worker, got {self.gpus:g}: a model runs on one device; use more "
                "workers"
            )
        if self.cpus is not None and self.cpus <= 0:
            raise SettingError(f"survey: cpus must be above 0, got {self.cpus:g}")

    @property
    def uses_ray(self) -> bool:
        """Whether the survey runs on Ray."""
        return self.count > 1 or self.address is not None

    @property
    def num_threads(self) -> int:
        """Threads per worker."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.count)

    @property
    def num_cpus(self) -> float:
        """CPUs per worker that Ray reserves."""
        return float(self.num_threads) if self.cpus is None else self.cpus


class WorkReport(NamedTuple):
    """The work since the previous report of the same worker: a batch, or the rest of a shard."""

    tokens: int
    seconds: float
    """Seconds since the previous report, waiting included."""
    model_seconds: float
    """The part of them that was spent in the model."""
    shard: int | None = None
    """The number of the shard, in its last report."""
    workers: int | None = None
    """The number of workers at this time, if it changes."""
    merged: int = 0
    """The number of partial results that were merged."""


OnReport = Callable[[WorkReport], object]
"""Called with each report."""


class Worker:
    """Reads shards with one model, and saves their partial results.

    Args:
        reader: The model, tokenizer and settings.
        folder: The folder of the survey.
        threads: The number of torch threads, set for this process.
    """

    def __init__(self, reader: ShardReader, folder: SurveyFolder, threads: int) -> None:
        torch.set_num_threads(threads)
        self.reader, self.folder = reader, folder
        self._last = time.perf_counter()

    def work(self, shard: Shard, on_report: OnReport | None = None) -> WorkReport:
        """Read a shard and save its partial result.

        Args:
            shard: The shard to read.
            on_report: Called after each batch.

        Returns:
            The last report of the shard: the work since the last call of `on_report`, or all of it.

        Raises:
            AccessSettingError: The shard could not be read or saved, also when retried; nothing of it was saved.
            CheckpointError: A file of the shard has changed.
        """
        timer = ReportTimer(self._last, self.reader)
        partial = self._read(shard, None if on_report is None else lambda tokens: on_report(timer.next(tokens)))
        last = timer.next(partial.tokens, shard.number)
        self._last = timer.time
        return last

    def _read(self, shard: Shard, on_batch: Callable[[int], object] | None) -> PartialResult:
        try:
            return retry_access(lambda: self._read_and_save(shard, on_batch))
        except OSError as error:
            raise AccessSettingError(
                f"survey: the machine {platform.node()} could not read shard {shard.number}, or save its partial "
                f"result: {error}; fix this, and run the same command again to resume"
            ) from error

    def _read_and_save(self, shard: Shard, on_batch: Callable[[int], object] | None) -> PartialResult:
        partial = read_shard(shard, self.reader, on_batch)
        path = self.folder.partial_path(shard.number)
        if not path.exists():  # otherwise another worker read a copy; on other hardware, its rounding may differ
            save_partial(partial, path)
        return partial


class ReportTimer:
    """Measures the work between reports."""

    def __init__(self, start: float, reader: ShardReader) -> None:
        self.time, self._reader = start, reader
        self._model_seconds, self._tokens = reader.model_seconds, 0

    def next(self, tokens: int, shard: int | None = None) -> WorkReport:
        """The report up to now, when `tokens` tokens of the shard have been read in total."""
        now, model_seconds = time.perf_counter(), self._reader.model_seconds
        report = WorkReport(tokens - self._tokens, now - self.time, model_seconds - self._model_seconds, shard)
        self.time, self._model_seconds, self._tokens = now, model_seconds, tokens
        return report
