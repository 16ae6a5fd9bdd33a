"""All missing shards one after the other, in this process.

In: shards, and a reader. Out: the parts on the disk. Does not know: Ray. Memory: what one batch takes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnscope.survey.corpus.plan import Shard
from attnscope.survey.folder import Folder
from attnscope.survey.work.shard import Reader
from attnscope.survey.work.workers import Told, Worker, Workers


def run_alone(shards: Iterable[Shard], reader: Reader, folder: Folder, workers: Workers, told: Told) -> None:
    """Read shards in their order; `told` hears of every batch."""
    threads = torch.get_num_threads()
    try:
        worker = Worker(reader, folder, workers.num_threads)
        for shard in shards:
            told(worker.work(shard, told))
    finally:
        torch.set_num_threads(threads)  # they are the caller's, too
