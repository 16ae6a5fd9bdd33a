"""Throughput of survey workers on Ray compared with plain processes, each worker with one thread.

The throughput is measured in steady state: from the time at which every worker has written its first partial result to
the last one, by the modification times of the files.
"""

from __future__ import annotations

import time
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from attnscope.errors import SettingError
from attnscope.survey import Settings, Workers
from attnscope.survey.corpus.plan import Shard, plan_shards
from attnscope.survey.execution.ray_pool import RayPool
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import Worker
from attnscope.survey.folder import PARTIALS, SurveyFolder
from attnscope.survey.partials.partial_files import load_partial


class Speed(NamedTuple):
    """The throughput of all workers together."""

    tokens_per_second: float
    startup_seconds: float
    """Seconds until every worker has written its first partial result."""


def ray_speed(settings: Settings, out: Path, count: int) -> Speed:
    """Measure actors of a Ray cluster that is started for the purpose."""
    shards, folder = _shards(settings, count), _new_folder(out)
    start = time.time()
    with RayPool(settings, Workers(count=count, threads=1)) as pool:
        pool.read(shards, folder, lambda _: None)
    return _speed(shards, folder, count, start)


def plain_speed(settings: Settings, out: Path, count: int) -> Speed:
    """Measure processes that take shards from a queue."""
    shards, folder = _shards(settings, count), _new_folder(out)
    context = get_context("spawn")
    queue, ready = context.Queue(), context.Barrier(count)
    for shard in [*shards, *[None] * count]:
        queue.put(shard)
    start = time.time()
    processes = [context.Process(target=_work, args=(settings, folder.path, queue, ready)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return _speed(shards, folder, count, start)


def _work(settings: Settings, folder: Path, queue: Queue[Shard | None], ready: Barrier) -> None:
    worker = Worker(ShardReader.load(settings), SurveyFolder(folder), threads=1)
    ready.wait()
    while (shard := queue.get()) is not None:
        worker.work(shard)


def _shards(settings: Settings, count: int) -> tuple[Shard, ...]:
    shards = plan_shards(settings).shards
    if len(shards) < 2 * count:
        raise SettingError(f"{count} workers need at least {2 * count} shards, got {len(shards)}")
    return shards


def _new_folder(out: Path) -> SurveyFolder:
    (out / PARTIALS).mkdir(parents=True)
    return SurveyFolder(out)


def _speed(shards: tuple[Shard, ...], folder: SurveyFolder, count: int, start: float) -> Speed:
    paths = [Path(str(folder.partial_path(shard.number))) for shard in shards]
    paths.sort(key=lambda path: path.stat().st_mtime_ns)
    times = [path.stat().st_mtime_ns / 1e9 for path in paths]
    tokens = sum(load_partial(path).tokens for path in paths[count:])
    return Speed(tokens / (times[-1] - times[count - 1]), times[count - 1] - start)
