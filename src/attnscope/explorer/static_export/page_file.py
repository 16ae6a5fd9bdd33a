"""`save_page`: a head of a trace, and as many others as fit, as an HTML file.

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
from attnscope.explorer.service.guard import App
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.static_export.exporter import StaticPage, View, export_page, request_opening
from attnscope.recording import Trace


def save_page(
    trace: Trace, path: str | Path, *, layer: int | None = None, head: int | None = None, name: str | None = None
) -> int:
    """Write a static HTML page of a head, which needs neither AttnScope nor a network.

    The other heads are included while they fit into 12 MB: all of them for a sentence, none for a long text.

    Args:
        trace: The trace.
        path: The file to write.
        layer: The index of the layer in the trace.
        head: The index of the head in the layer. Without a layer and a head, it is the one that the explorer opens on.
        name: The name to display; by default that of the model.

    Returns:
        The number of heads in the file.

    Raises:
        SettingError: The path, the layer or the head is invalid, or the file cannot be written; a file that was there
            is then unchanged.
        UnsupportedError: The trace has no weights.
    """
    library, workers = Library(), WorkerPools()
    try:
        trace_id = library.add(trace, name=name or trace.model or "trace")
        _check(trace, layer or 0, head or 0, Path(path))
        assets = read_assets()
        app = make_router(library, None, workers, assets=assets)

        async def export() -> StaticPage:
            shown = (layer or 0, head or 0)
            if layer is None and head is None:
                shown = await _choose_head(app, trace_id)
            queries, keys = trace.layer(shown[0]).shape[2:]
            return await export_page(app, assets, library, trace_id, shown, View(range(queries), range(keys)))

        with ThreadPoolExecutor(1) as pool:  # a notebook already runs an event loop in this thread
            page, num_heads = pool.submit(lambda: asyncio.run(export())).result()
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
    return num_heads


async def _choose_head(app: App, trace: str) -> tuple[int, int]:
    """The head that the explorer opens on: the most distinctive one, or the first if no head has a label."""
    found = (await request_opening(app, trace))["opening"]
    return (found["layer"], found["head"]) if found else (0, 0)


def _check(trace: Trace, layer: int, head: int, path: Path) -> None:
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise SettingError(f"save_page: cannot write {path}; expected a file in an existing folder")
    if not 0 <= layer < len(trace):
        raise SettingError(f"save_page: expected a layer from 0 to {len(trace) - 1}, got {layer}")
    heads = trace.layer(layer).shape[1]
    if not 0 <= head < heads:
        raise SettingError(f"save_page: expected a head from 0 to {heads - 1} in layer {layer}, got {head}")
