"""`publish_trace`: a trace as a static site, which any host with range requests serves.

The site is written to a folder beside the final one, an archive per head and per layer, and renamed when it is
complete. Every finished archive is recorded with its checksum, so a publication that was killed continues with the next
one, and the bytes of the site do not depend on that. In: a trace and a folder. Out: the site.
Does not know: hosts, browsers. Memory: that of one head, and the links of one layer.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from attnscope.atomic_files import write_atomically
from attnscope.checksums import sha256_file
from attnscope.errors import SettingError
from attnscope.explorer.library.library import Entry, Library
from attnscope.explorer.service.app import make_router, read_assets
from attnscope.explorer.service.guard import App
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.static_site.archive import StoredFile, store_file
from attnscope.explorer.static_site.head_archive import TokenLinks, write_head
from attnscope.explorer.static_site.layer_archive import unscored, write_layer
from attnscope.explorer.static_site.manifest import FORMAT_VERSION, write_manifest, write_trace
from attnscope.explorer.static_site.pages import write_pages
from attnscope.explorer.static_site.plan import HeadId, check_budget, head_size
from attnscope.folder_lock import LOCK, lock_folder
from attnscope.recording import Trace
from attnscope.version import __version__

STATE = ".publish"
"""The folder with the records of finished archives; it is removed at the end."""
SAMPLE_ROWS = 64
PASSES = 3.0  # over the cells of a head, in units of the sample: log-sum-exp, stored levels, links, scores


class Estimate(NamedTuple):
    """What a publication takes."""

    num_heads: int
    max_bytes: int
    seconds: float


def estimate(trace: Trace, heads: Sequence[HeadId], *, budget: int | None = None) -> Estimate:
    """Estimate size and time; the time comes from some rows of the first head, which are computed on this machine.

    Raises:
        SettingError: There are no heads, or the site would be over the budget.
    """
    if not heads:
        raise SettingError("publish: expected at least one head")
    max_bytes = check_budget(trace, heads, budget)
    matrix = trace.layer(heads[0][0]).matrix().batch(0).head(heads[0][1])
    rows = min(SAMPLE_ROWS, matrix.shape[0])
    _ = matrix[:rows]  # starts the kernels
    start = time.perf_counter()
    _ = matrix[-rows:]
    per_cell = (time.perf_counter() - start) / (rows * matrix.shape[1])
    cells = sum(head_size(trace, *head).cells for head in heads)
    return Estimate(len(heads), max_bytes, PASSES * cells * per_cell)


def publish_trace(
    trace: Trace,
    folder: str | Path,
    heads: Sequence[HeadId],
    *,
    name: str | None = None,
    progress: Callable[[int, int], object] | None = None,
    report: Callable[[str], object] | None = None,
) -> None:
    """Write a trace as a static site, or continue a publication of the same trace that was interrupted.

    Args:
        trace: The trace.
        folder: The folder of the site, which must not exist.
        heads: The heads to publish.
        name: The name to display; by default that of the model.
        progress: Called with the finished and all steps.
        report: Called with a sentence when an interrupted publication is continued.

    Raises:
        SettingError: The folder exists, or an unfinished site of another trace is beside it.
        UnsupportedError: The trace has no weights, or a head has NaN weights.
    """
    target = Path(folder)
    if target.exists():
        raise SettingError(f"publish: {target} exists; give another folder, or remove it")
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    report = report or _ignore
    with lock_folder(unfinished, report):
        library, workers = Library(), WorkerPools()
        try:
            trace_id = library.add(trace, name=name or trace.model or "trace")
            entry, assets = library.entry(trace_id), read_assets()
            assert entry is not None, "it was added"
            site = _Site(unfinished, entry, list(heads), progress or _ignore)
            site.resume(report)
            app = make_router(library, None, workers, assets=assets)
            with ThreadPoolExecutor(1) as pool:  # a notebook already runs an event loop in this thread
                pool.submit(lambda: asyncio.run(site.write(app))).result()
        finally:
            library.close()
            workers.close()
        shutil.rmtree(unfinished / STATE)
    for left in unfinished.glob(f"{LOCK}*"):
        left.unlink()
    unfinished.rename(target)


def _ignore(*_: object) -> None: ...


class _Site:
    """A site that is being written."""

    def __init__(self, folder: Path, entry: Entry, heads: list[HeadId], progress: Callable[[int, int], object]) -> None:
        self.folder, self.entry, self.heads, self._progress = folder, entry, heads, progress
        self.state = folder / STATE
        self.files: list[StoredFile] = []
        self.layers = {layer: [head for _, head in some] for layer, some in groupby(heads, key=lambda one: one[0])}
        self._done = 0

    def resume(self, report: Callable[[str], object]) -> None:
        """Check that what is in the folder belongs to this publication, and record what is being published."""
        settings = {
            "format": FORMAT_VERSION,
            "version": __version__,
            "trace": self.entry.trace_id,
            "name": self.entry.name,
            "heads": self.heads,
        }
        content = json.dumps(settings).encode()
        path = self.state / "settings.json"
        if path.is_file():
            if path.read_bytes() != content:
                raise SettingError(
                    f"publish: {self.folder} is an unfinished site of another trace, other heads or another version; "
                    "remove it, or publish to another folder"
                )
            report(f"continuing the unfinished site in {self.folder}")
            return
        self.state.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)

    async def write(self, app: App) -> None:
        """Write all archives, then the pages, and the manifest last."""
        scores = {}
        self._progress(0, self.num_steps)
        for layer in self.layers:
            scores[layer] = await self._write_layer(app, layer)
        for layer in range(len(self.entry.trace)):
            self.entry.scores.put(layer, scores.get(layer) or unscored(self.entry, layer))
        stored, description = await write_trace(app, self.entry, self.folder, self.heads)
        self._advance()
        self.files += [stored, *write_pages(self.folder, self.entry, len(self.heads))]
        await write_manifest(app, self.entry, self.folder, self.heads, description, self.files)
        self._advance()

    @property
    def num_steps(self) -> int:
        """An archive each, and the pages."""
        return len(self.heads) + len(self.layers) + 2

    async def _write_layer(self, app: App, layer: int) -> dict[str, Any]:
        """Write the archives and the index of a layer, and return the scores of its heads."""
        place = f"{self.entry.trace_id}/L{layer:03}"
        indexes, links = {}, []
        for head in self.layers[layer]:
            record = f"L{layer:03}H{head:03}"
            stored = self._find(record)
            if stored is None:
                name = f"{place}/H{head:03}.bin"
                stored, found = await write_head(app, self.entry, self.folder, name, layer, head)
                numpy.savez(self.state / f"{record}.npz", **found._asdict())
                self._record(record, stored)
            with numpy.load(self.state / f"{record}.npz") as saved:
                links.append(TokenLinks(**saved))
            self.files.append(stored)
            indexes[head] = stored.contents
            self._advance()
        return await self._finish_layer(app, layer, indexes, links)

    async def _finish_layer(
        self, app: App, layer: int, indexes: dict[int, dict[str, Any]], links: list[TokenLinks]
    ) -> dict[str, Any]:
        place, record = f"{self.entry.trace_id}/L{layer:03}", f"L{layer:03}"
        stored = self._find(record)
        if stored is None:
            stored, scores = await write_layer(app, self.entry, self.folder, f"{place}/layer.bin", layer, links)
            self._record(record, stored._replace(contents={**stored.contents, "scores": scores}))
            stored = self._find(record)
            assert stored is not None, "it was recorded"
        scores = stored.contents.pop("scores")
        index = json.dumps({"layer": stored.contents, "heads": indexes}, separators=(",", ":")).encode()
        self.files += [stored, store_file(self.folder, f"{place}/index.json", index)]
        self._advance()
        return scores

    def _advance(self) -> None:
        self._done += 1
        self._progress(self._done, self.num_steps)

    def _record(self, name: str, stored: StoredFile) -> None:
        write_atomically(self.state / f"{name}.json", json.dumps(stored).encode())

    def _find(self, name: str) -> StoredFile | None:
        """A finished archive whose bytes are intact."""
        with suppress(FileNotFoundError):
            stored = StoredFile(*json.loads((self.state / f"{name}.json").read_bytes()))
            if sha256_file(self.folder / stored.name) == stored.sha256:
                return stored
        return None
