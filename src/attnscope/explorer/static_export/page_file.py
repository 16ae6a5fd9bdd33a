"""A head of a trace as a page on disk.

In: a trace and a path. Out: a file that any browser opens. Does not know: what is in it.
Memory: that of the page, and of what is computed for it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attnscope.errors import SettingError
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.app import make_router, read_assets
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.static_export.exporter import View, export_page
from attnscope.recording import Trace


def save_page(trace: Trace, path: str | Path, *, layer: int = 0, head: int = 0, name: str | None = None) -> None:
    """Write a head of a trace to `path`, as a page that opens with all of it."""
    library, work = Library(), WorkerPools()
    try:
        identity = library.add(trace, name=name or trace.model or "trace")
        _check(trace, layer, head, Path(path))
        queries, keys = trace.layer(layer).shape[2:]
        view, assets = View(range(queries), range(keys)), read_assets()
        app = make_router(library, None, work, assets=assets)

        def make() -> bytes:
            return asyncio.run(export_page(app, assets, library, identity, (layer, head), view))

        with ThreadPoolExecutor(1) as aside:  # a notebook has a loop of its own in this thread
            page = aside.submit(make).result()
    finally:
        library.close()
        work.close()
    Path(path).write_bytes(page)


def _check(trace: Trace, layer: int, head: int, path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise SettingError(f"save_page: {path} cannot be written; give a file in a folder that is there")
    if not 0 <= layer < len(trace):
        raise SettingError(f"save_page: layer {layer} was asked for; this trace has the layers 0 to {len(trace) - 1}")
    heads = trace.layer(layer).shape[1]
    if not 0 <= head < heads:
        raise SettingError(f"save_page: head {head} was asked for; layer {layer} has the heads 0 to {heads - 1}")
