"""`publish_trace`: a trace as a static site, which any host with range requests serves.

An archive per head and per layer is written, by one process or several, to a folder or an object store. Every finished
archive is recorded with its checksum, so a publication that was killed continues with the missing ones. The bytes of
the site depend neither on that nor, with the same number of threads in each, on the number of processes. In: a trace
and a folder. Out: the site.
Does not know: hosts, browsers. Memory: one head per process, and the indexes of unfinished layers.
"""

from __future__ import annotations

import timeit
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from attnscope.errors import AttnScopeError, SettingError
from attnscope.explorer.static_site.archive import StoredFile
from attnscope.explorer.static_site.manifest import FORMAT_VERSION
from attnscope.explorer.static_site.plan import HeadId, check_budget, head_size
from attnscope.explorer.static_site.site_folder import open_site
from attnscope.explorer.static_site.site_writer import SiteWriter, head_record, layer_record
from attnscope.explorer.static_site.worker_processes import Task, WorkerProcesses, num_cores, threads_per_worker
from attnscope.recording import Trace
from attnscope.stores.paths import StorePath, to_path
from attnscope.version import __version__

SAMPLE_ROWS, SAMPLE_CELLS = 64, 2**22  # at least
SAMPLES = 3  # the fastest counts: other work on the machine makes one sample several times too slow
HEAD_SECONDS, TOKEN_SECONDS, TILE_SECONDS = 0.012, 1e-4, 0.006  # beside the time of the cells, on one core

KILLED = (
    "publish: a worker process was killed, perhaps because memory ran out; the same command continues, and fewer "
    "--workers need less memory"
)


class Estimate(NamedTuple):
    """What a publication takes."""

    num_heads: int
    max_bytes: int
    seconds: float
    """Without uploads."""


def estimate(trace: Trace, heads: Sequence[HeadId], *, budget: int | None = None, workers: int = 1) -> Estimate:
    """Estimate size and time: that of the cells from some rows of the first head, computed on this machine.

    Raises:
        SettingError: There are no heads or no workers, or the site would be over the budget.
    """
    _check_workers(workers)
    if not heads:
        raise SettingError("publish: expected at least one head")
    max_bytes = check_budget(trace, heads, budget)
    matrix = trace.layer(heads[0][0]).matrix().batch(0).head(heads[0][1])
    rows = min(max(SAMPLE_ROWS, SAMPLE_CELLS // matrix.shape[1]), matrix.shape[0])
    with _threads(threads_per_worker(workers)):
        _ = matrix[:rows]  # starts the kernels
        fastest = min(timeit.repeat(lambda: matrix[-rows:], number=1, repeat=SAMPLES))
    per_cell = fastest / (rows * matrix.shape[1])
    sizes = [head_size(trace, *head) for head in heads]
    seconds = [
        HEAD_SECONDS + TOKEN_SECONDS * one.tokens + TILE_SECONDS * one.tiles + per_cell * one.cells for one in sizes
    ]
    return Estimate(len(heads), max_bytes, sum(seconds) / min(workers, num_cores(), len(heads)))


class Published(NamedTuple):
    """A finished site."""

    num_files: int
    num_bytes: int


def publish_trace(
    trace: Trace,
    folder: str | Path | StorePath,
    heads: Sequence[HeadId],
    *,
    name: str | None = None,
    workers: int = 1,
    saved_in: str | Path | None = None,
    progress: Callable[[int, int], object] | None = None,
    report: Callable[[str], object] | None = None,
) -> Published:
    """Write a trace as a static site, or continue a publication of the same trace that was interrupted.

    Args:
        trace: The trace.
        folder: The folder of the site, which must not exist, or its URL in an object store.
        heads: The heads to publish.
        name: The name to display; by default that of the model.
        workers: The number of processes that write archives. Several start Python again, so a script that calls this
            needs `if __name__ == "__main__":`.
        saved_in: The folder in which the trace is saved, from which several processes open it.
        progress: Called with the finished and all steps.
        report: Called with a sentence when an interrupted publication is continued.

    Raises:
        SettingError: The folder exists, an unfinished site of another trace is in its place, or several workers have
            no saved trace.
        UnsupportedError: The trace has no weights, or a head has NaN weights.
        AttnScopeError: A worker process was killed.
        OSError: A file cannot be written.
    """
    _check_workers(workers)
    if workers > 1 and saved_in is None:
        raise SettingError("publish: several workers open the trace from its folder; save it, and give saved_in=FOLDER")
    name, report = name or trace.model or "trace", report or _ignore
    with open_site(to_path(folder), report) as site:
        writer, thread, processes = SiteWriter(trace, name, site), ThreadPoolExecutor(1), None
        try:
            settings = {"format": FORMAT_VERSION, "version": __version__, "trace": writer.trace_id, "name": name}
            if not site.claim({**settings, "heads": list(heads)}, report):
                if workers > 1 and saved_in is not None:
                    task = Task(Path(saved_in).absolute(), writer.trace_id, name, site, threads_per_worker(workers))
                    processes = WorkerProcesses(workers, task)
                publication = _Publication(
                    writer, processes or _ThisProcess(writer, thread), heads, progress or _ignore
                )
                publication.write_archives(workers)
                thread.submit(publication.finish).result()  # a notebook runs an event loop in the calling thread
            found = site.count_files()
            site.remove_records()
        except BrokenProcessPool as error:
            raise AttnScopeError(KILLED) from error
        finally:
            if processes is not None:
                processes.close()
            writer.close()
            thread.shutdown(cancel_futures=True)
    return Published(*found)


def _check_workers(workers: int) -> None:
    if workers < 1:
        raise SettingError(f"publish: expected at least 1 worker, got {workers}")


def _ignore(*_: object) -> None: ...


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with some threads, at most as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(count, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ArchiveWorkers(Protocol):
    """Writes archives in the background."""

    def write_head(self, layer: int, head: int) -> Future[StoredFile]:
        """Write the archive of a head."""
        ...

    def write_layer(self, layer: int, heads: Sequence[int]) -> Future[StoredFile]:
        """Write the archive of a layer."""
        ...


class _ThisProcess:
    """Writes archives in a thread of this process."""

    def __init__(self, writer: SiteWriter, thread: ThreadPoolExecutor) -> None:
        self._writer, self._thread = writer, thread

    def write_head(self, layer: int, head: int) -> Future[StoredFile]:
        return self._thread.submit(self._writer.write_head, layer, head)

    def write_layer(self, layer: int, heads: Sequence[int]) -> Future[StoredFile]:
        return self._thread.submit(self._writer.write_layer, layer, heads)


class _Publication:
    """Finds the archives that are missing, lets workers write them, and completes the site."""

    def __init__(
        self,
        writer: SiteWriter,
        archives: ArchiveWorkers,
        heads: Sequence[HeadId],
        progress: Callable[[int, int], object],
    ) -> None:
        self._writer, self._archives, self._heads, self._progress = writer, archives, heads, progress
        self._layers = {layer: [head for _, head in some] for layer, some in groupby(heads, key=lambda one: one[0])}
        self._finished: dict[str, StoredFile] = {}
        self._files: dict[int, list[StoredFile]] = {}
        self._scores: dict[int, Any] = {}
        self._done = 0

    @property
    def _num_steps(self) -> int:
        """An archive each, and the end."""
        return len(self._heads) + len(self._layers) + 1

    def write_archives(self, num_at_once: int) -> None:
        """Write what is missing: heads in their order, and a layer as soon as its heads are finished."""
        heads = self._find_missing_heads()
        layers = deque(layer for layer in self._layers if self._needs_archive(layer))
        running: dict[Future[StoredFile], tuple[int, int | None]] = {}
        while heads or layers or running:
            while len(running) <= num_at_once and (heads or layers):  # one is in the queue, so that no worker waits
                layer, head = (layers.popleft(), None) if layers else heads.popleft()
                if head is None:
                    running[self._archives.write_layer(layer, self._layers[layer])] = layer, None
                else:
                    running[self._archives.write_head(layer, head)] = layer, head
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                layer, head = running.pop(future)
                self._add(layer_record(layer) if head is None else head_record(layer, head), future.result())
                self._complete_layer(layer)
                if self._needs_archive(layer):
                    layers.append(layer)

    def _find_missing_heads(self) -> deque[HeadId]:
        """Read the records of earlier runs."""
        site, missing = self._writer.site, deque[HeadId]()
        objects = site.list_objects()
        self._progress(0, self._num_steps)
        for layer, heads in self._layers.items():
            names = {head_record(layer, head): (layer, head) for head in heads}
            for name, file in site.find_finished([*names, layer_record(layer)], objects):
                self._add(name, file)
            missing += [names[name] for name in names if name not in self._finished]
            self._complete_layer(layer)
        return missing

    def _needs_archive(self, layer: int) -> bool:
        """Whether the heads of a layer are finished, and the layer is not."""
        return layer not in self._files and all(
            head_record(layer, head) in self._finished for head in self._layers[layer]
        )

    def _add(self, record: str, file: StoredFile) -> None:
        self._finished[record] = file
        self._done += 1
        self._progress(self._done, self._num_steps)

    def _complete_layer(self, layer: int) -> None:
        """Write the index of a layer if all of its archives are finished, and drop what is only needed for that."""
        names = [*(head_record(layer, head) for head in self._layers[layer]), layer_record(layer)]
        if all(name in self._finished for name in names):
            *heads, stored = [self._finished.pop(name) for name in names]
            self._scores[layer] = stored.contents["scores"]
            self._files[layer] = self._writer.write_index(
                layer, stored, dict(zip(self._layers[layer], heads, strict=True))
            )

    def finish(self) -> None:
        """Write everything else, and the manifest last."""
        files = [file for layer in self._layers for file in self._files[layer]]
        self._writer.write_end(self._heads, self._scores, files)
        self._progress(self._num_steps, self._num_steps)
