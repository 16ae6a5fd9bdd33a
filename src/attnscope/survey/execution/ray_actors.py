"""Reads all missing shards on Ray: a pool of actors, each with the model, on this machine or on a cluster.

In: shards. Out: partial results on disk, which the actors write; an actor returns one report per shard. Ray restarts an
actor that dies, and its shards are retried.
Does not know: the content of a shard. Memory: a few hundred bytes per shard.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from attnscope.errors import AttnScopeError, SettingError
from attnscope.extras import import_extra
from attnscope.survey.corpus.plan import Shard, Span
from attnscope.survey.execution.ray_cluster import connect_to_ray
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import OnReport, Worker, Workers, WorkReport
from attnscope.survey.folder import SurveyFolder
from attnscope.survey.settings import Settings

MAX_ATTEMPTS = 20
"""How often a shard is tried: one that kills every worker, for example for lack of memory, must not do so forever."""
MAX_TASKS_PER_ACTOR = 2
"""Shards that an actor is given at once, so that it does not wait for the next one."""
MAX_BLOCKS = 8192
"""Blocks of the Ray dataset; with more shards, a block has several."""


def run_on_ray(
    shards: Sequence[Shard], settings: Settings, folder: SurveyFolder, workers: Workers, on_report: OnReport
) -> None:
    """Read shards in any order; `on_report` is called after every shard."""
    items = [{"shard": json.dumps(shard)} for shard in shards]
    with connect_to_ray(workers), disable_progress_bars(data := import_extra("ray.data")):
        done = data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS)).map(
            SurveyActor,  # Ray Data restarts it whenever it dies
            fn_constructor_args=(settings, folder.path, workers, f"{time.time_ns():x}"),
            compute=data.ActorPoolStrategy(size=workers.count, max_tasks_in_flight_per_actor=MAX_TASKS_PER_ACTOR),
            num_cpus=workers.num_cpus,
            num_gpus=workers.gpus or None,
        )
        for columns in done.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
            for report, error in zip(*(columns[name].tolist() for name in ("report", "error")), strict=True):
                if error:
                    raise AttnScopeError(error)
                on_report(WorkReport(*json.loads(report)))


def disable_progress_bars(data: Any) -> AbstractContextManager[None]:
    """Use Ray Data without its progress bars."""
    context = data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    return data.DataContext.current(context)


class SurveyActor:
    """A worker as a Ray Data actor: maps a row with a shard to a row with a report."""

    def __init__(self, settings: Settings, folder: Path, workers: Workers, run: str) -> None:
        self._folder, self._run, self._error = SurveyFolder(folder), run, ""
        try:
            torch.set_num_interop_threads(1)
            self._worker = Worker(ShardReader.load(settings, workers.device), self._folder, workers.num_threads)
        except AttnScopeError as error:  # raised by the driver: as an error of Ray it would be a page long
            self._error = str(error)

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Read a shard, unless its partial result is there already."""
        number, spans = json.loads(row["shard"])
        report = WorkReport(0, 0.0, 0.0, number)
        try:
            if not self._error and not self._folder.partial_path(number).exists():
                report = self._attempt(Shard(number, tuple(Span(*span) for span in spans)))
        except AttnScopeError as error:
            self._error = str(error)
        return {"report": json.dumps(report), "error": self._error}

    def _attempt(self, shard: Shard) -> WorkReport:
        """Read a shard, unless it has failed `MAX_ATTEMPTS` times in this run."""
        path = self._folder.attempts_path(shard.number, self._run)
        with path.open("ab") as attempts:
            if attempts.tell() == MAX_ATTEMPTS:
                raise SettingError(
                    f"survey: {MAX_ATTEMPTS} workers died while reading shard {shard.number}, which starts in "
                    f"{shard.spans[0].file}; if memory is short, use fewer workers or a smaller --batch-tokens"
                )
            attempts.write(b".")
        report = self._worker.work(shard)
        path.unlink(missing_ok=True)
        return report
