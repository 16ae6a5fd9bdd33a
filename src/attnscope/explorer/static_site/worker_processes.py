"""`WorkerProcesses`: processes that open a saved trace and write archives of a site.

In: the folder of the trace, the site, and which archives to write. Out: futures of finished files. The processes end
with the one that started them, also if that is killed. Does not know: which files are missing. Memory: the trace is
memory-mapped; each process needs that of a `SiteWriter`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import torch

from attnscope.errors import SettingError
from attnscope.explorer.static_site.archive import StoredFile
from attnscope.explorer.static_site.site_folder import SiteFolder
from attnscope.explorer.static_site.site_writer import SiteWriter
from attnscope.recording import open_trace


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_worker(num_workers: int) -> int:
    """The share of the cores that each of several processes uses."""
    return max(1, num_cores() // num_workers)


@dataclass(frozen=True)
class Task:
    """What all processes write."""

    trace: Path
    """The folder of the trace."""
    trace_id: str
    name: str
    site: SiteFolder
    threads: int
    """Of torch, in each process."""


class WorkerProcesses:
    """Processes that write archives.

    Args:
        count: The number of processes.
        task: What they write.
    """

    def __init__(self, count: int, task: Task) -> None:
        context = get_context("spawn")
        self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_Process.start, initargs=(task, self._lifeline[0])
        )

    def write_head(self, layer: int, head: int) -> Future[StoredFile]:
        """Write the archive of a head, as `SiteWriter.write_head` does."""
        return self._pool.submit(_write_head, layer, head)

    def write_layer(self, layer: int, heads: Sequence[int]) -> Future[StoredFile]:
        """Write the archive of a layer, as `SiteWriter.write_layer` does."""
        return self._pool.submit(_write_layer, layer, heads)

    def close(self) -> None:
        """End the processes at once, and with them what they are writing."""
        for end in self._lifeline:
            end.close()
        self._pool.shutdown(cancel_futures=True)


class _Process:
    """The state of a worker process."""

    task: ClassVar[Task]
    writer: ClassVar[SiteWriter | None] = None

    @classmethod
    def start(cls, task: Task, lifeline: Connection) -> None:
        """Prepare this process. The trace is opened by the first task, whose future can hold an error."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C, which the process that started this one handles
        threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
        torch.set_num_threads(task.threads)
        cls.task = task

    @classmethod
    def get_writer(cls) -> SiteWriter:
        """The writer of this process."""
        if cls.writer is None:
            task = cls.task
            writer = SiteWriter(open_trace(task.trace), task.name, task.site)
            if writer.trace_id != task.trace_id:
                writer.close()
                raise SettingError(f"publish: the trace in {task.trace} is not the one that is published")
            cls.writer = writer
        return cls.writer


def _write_head(layer: int, head: int) -> StoredFile:
    return _Process.get_writer().write_head(layer, head)


def _write_layer(layer: int, heads: Sequence[int]) -> StoredFile:
    return _Process.get_writer().write_layer(layer, heads)


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end of a pipe is closed, or its process has ended."""
    lifeline.poll(None)
    os._exit(1)
