"""`save_page`: one head of a trace as an HTML file.

In: a trace and a path. Out: a file that any browser opens. Does not know: its content.
Memory: that of the page, and of the computation.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attnscope.atomic_files import write_atomically
from attnscope.errors import SettingError
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.app import make_router, read_assets
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.static_export.exporter import View, export_page
from attnscope.recording import Trace


def save_page(trace: Trace, path: str | Path, *, layer: int = 0, head: int = 0, name: str | None = None) -> None:
    """Write one head of a trace as a static HTML page, which needs neither AttnScope nor a network.

    Args:
        trace: The trace.
        path: The file to write.
        layer: The index of the layer in the trace.
        head: The index of the head in the layer.
        name: The name to display; by default that of the model.

    Raises:
        SettingError: The path, the layer or the head is invalid, or the file cannot be written; a file that was there
            is then unchanged.
        UnsupportedError: The trace has no weights.
    """
    library, workers = Library(), WorkerPools()
    try:
        trace_id = library.add(trace, name=name or trace.model or "trace")
        _check(trace, layer, head, Path(path))
        queries, keys = trace.layer(layer).shape[2:]
        view, assets = View(range(queries), range(keys)), read_assets()
        app = make_router(library, None, workers, assets=assets)

        def make() -> bytes:
            return asyncio.run(export_page(app, assets, library, trace_id, (layer, head), view))

        with ThreadPoolExecutor(1) as pool:  # a notebook already runs an event loop in this thread
            page = pool.submit(make).result()
    finally:
        library.close()
        workers.close()
    try:
        write_atomically(Path(path).resolve(), page)  # through a link, to the file that it names
    except OSError as error:
        raise SettingError(
            f"save_page: cannot write {path} ({len(page) / 1e6:.1f} MB): {error.strerror or error}; free some space or "
            "give another path"
        ) from error


def _check(trace: Trace, layer: int, head: int, path: Path) -> None:
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise SettingError(f"save_page: cannot write {path}; expected a file in an existing folder")
    if not 0 <= layer < len(trace):
        raise SettingError(f"save_page: expected a layer from 0 to {len(trace) - 1}, got {layer}")
    heads = trace.layer(layer).shape[1]
    if not 0 <= head < heads:
        raise SettingError(f"save_page: expected a head from 0 to {heads - 1} in layer {layer}, got {head}")
