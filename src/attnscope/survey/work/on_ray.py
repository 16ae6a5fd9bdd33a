"""All missing shards on Ray: a pool of actors, each with the model, on this machine or on a cluster.

In: shards. Out: their parts on the disk, which the actors write; what travels is a row of numbers for each shard.
An actor that dies is started again, and what it was reading is read again.
Does not know: what is in a shard. Memory: a few hundred bytes a shard.
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
from attnscope.survey.folder import Folder
from attnscope.survey.settings import Settings
from attnscope.survey.work.cluster import cluster
from attnscope.survey.work.shard import Reader
from attnscope.survey.work.workers import Step, Told, Worker, Workers

MAX_TRIES = 20
"""How often a shard is begun: one that kills every worker, say for want of memory, should not do so for ever."""
AHEAD = 2
"""Shards that an actor is given at once: the next one is there when it is done."""
MAX_BLOCKS = 8192
"""Pieces of work for Ray; of more shards, several are one."""


def run_on_ray(shards: Sequence[Shard], settings: Settings, folder: Folder, workers: Workers, told: Told) -> None:
    """Read shards in any order; `told` hears of every shard that is done."""
    items = [{"shard": json.dumps(shard)} for shard in shards]
    with cluster(workers), silent(data := import_extra("ray.data")):
        done = data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS)).map(
            Actor,  # which Ray Data starts again as often as it dies
            fn_constructor_args=(settings, folder.path, workers, f"{time.time_ns():x}"),
            compute=data.ActorPoolStrategy(size=workers.count, max_tasks_in_flight_per_actor=AHEAD),
            num_cpus=workers.num_cpus,
            num_gpus=workers.gpus or None,
        )
        for columns in done.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
            for step, refusal in zip(*(columns[name].tolist() for name in ("step", "refusal")), strict=True):
                if refusal:
                    raise AttnScopeError(refusal)
                told(Step(*json.loads(step)))


def silent(data: Any) -> AbstractContextManager[None]:
    """Ray Data without its progress bars."""
    context = data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    return data.DataContext.current(context)


class Actor:
    """A worker as Ray holds it: rows in, rows out."""

    def __init__(self, settings: Settings, folder: Path, workers: Workers, run: str) -> None:
        self._folder, self._run, self._refusal = Folder(folder), run, ""
        try:
            torch.set_num_interop_threads(1)
            self._worker = Worker(Reader.load(settings, workers.device), self._folder, workers.num_threads)
        except AttnScopeError as error:  # raised where somebody reads it: as an error of Ray it would be a page long
            self._refusal = str(error)

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Read a shard, and say how long that took."""
        number, spans = json.loads(row["shard"])
        step = Step(0, 0.0, 0.0, number)
        try:
            if not self._refusal and not self._folder.part(number).exists():
                step = self._tried(Shard(number, tuple(Span(*span) for span in spans)))
        except AttnScopeError as error:
            self._refusal = str(error)
        return {"step": json.dumps(step), "refusal": self._refusal}

    def _tried(self, shard: Shard) -> Step:
        """Read a shard, unless many workers have died of it."""
        path = self._folder.tries(shard.number, self._run)
        with path.open("ab") as tries:
            if tries.tell() == MAX_TRIES:
                raise SettingError(
                    f"survey: {MAX_TRIES} workers have died while they read shard {shard.number}, which begins in "
                    f"{shard.spans[0].file}; if memory was short, ask for fewer workers or a smaller --batch"
                )
            tries.write(b".")
        step = self._worker.work(shard)
        path.unlink(missing_ok=True)
        return step
