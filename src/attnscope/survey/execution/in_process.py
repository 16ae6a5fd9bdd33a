"""Reads all missing shards one after the other, in this process.

In: shards, and a reader. Out: partial results on disk. Does not know: Ray. Memory: one batch, and the partial result.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnscope.survey.corpus.plan import Shard
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import OnReport, Worker, Workers
from attnscope.survey.folder import SurveyFolder


def run_in_process(
    shards: Iterable[Shard], reader: ShardReader, folder: SurveyFolder, workers: Workers, on_report: OnReport
) -> None:
    """Read shards in order; `on_report` is called after every batch."""
    threads = torch.get_num_threads()
    try:
        worker = Worker(reader, folder, workers.num_threads)
        for shard in shards:
            on_report(worker.work(shard, on_report))
    finally:
        torch.set_num_threads(threads)  # the caller uses this process, too
