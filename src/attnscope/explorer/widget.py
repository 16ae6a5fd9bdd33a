"""`Widget`: the explorer in a notebook cell, and the display of a trace.

In: traces. Out: a widget that uses only the notebook's own connection: no port is opened, and nothing is downloaded.
Does not know: responses. Memory: that of the library while a view is open, then the traces; a displayed trace is only
referenced weakly.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

from attnscope.errors import SettingError
from attnscope.explorer.launch import make_unique
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.app import STATIC, make_router, read_assets
from attnscope.explorer.service.comm import CommServer, OpenApp, get_notebook_loop
from attnscope.extras import import_extra
from attnscope.recording import Trace

traitlets = import_extra("traitlets")

MIN_HEIGHT, DEFAULT_HEIGHT, MAX_HEIGHT = 240, 640, 4000  # pixels
TILE_BYTES = 2**26  # less than the server, because a kernel needs memory for other things


class Widget(import_extra("anywidget").AnyWidget):
    """The explorer of some traces in a notebook cell. It holds the traces until `close`.

    Args:
        *traces: The traces; the first is shown first.
        layer: The layer of the first trace to show; the first if only `head` is given.
        head: The head in that layer; the first if only `layer` is given. With neither, the explorer chooses a head.
        height: The height in pixels.

    Attributes:
        state: What is shown, as the fragment of the page's address; it is synchronised with the cell.

    Raises:
        SettingError: There is no trace, or the layer, head or height is out of range.
        UnsupportedError: A trace has no weights, because it was recorded with `keep="statistics"`.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _build = traitlets.Unicode().tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(DEFAULT_HEIGHT, min=MIN_HEIGHT, max=MAX_HEIGHT).tag(sync=True)

    def __init__(
        self, *traces: Trace, layer: int | None = None, head: int | None = None, height: int = DEFAULT_HEIGHT
    ) -> None:
        if not traces or not all(isinstance(trace, Trace) for trace in traces):
            raise SettingError(
                "Widget: expected one or more traces, as made by attnscope.record or attnscope.open_trace"
            )
        if not MIN_HEIGHT <= height <= MAX_HEIGHT:
            raise SettingError(f"Widget: expected a height of {MIN_HEIGHT} to {MAX_HEIGHT:,} pixels, got {height}")
        state = "" if layer is None and head is None else _make_address(traces[0], layer or 0, head or 0)
        files = read_assets()
        self._traces: tuple[Trace, ...] = traces
        self._weak_traces: tuple[weakref.ref[Trace], ...] = ()  # of traces that are held only while a view is open
        self._library: Library | None = _make_library(traces)  # here, so that an invalid trace raises now
        self._server = CommServer(self._open_app, self.send, files=files, on_idle=self._release)
        super().__init__(
            _esm=(STATIC / "loader.js").read_text("utf-8"),
            _build=hashlib.blake2b(b"".join(files.values()), digest_size=8).hexdigest(),
            state=state,
            height=height,
        )
        self.on_msg(self._receive)

    def close(self) -> None:
        """Remove the widget from all cells, and release its traces."""
        if self.comm is None:
            return
        layout = self.layout
        super().close()
        layout.close()  # a separate widget
        self._server.close()
        self._traces, self._weak_traces, self._library = (), (), None

    def hold_weakly(self) -> None:
        """Hold the traces only while a view is open, and close the widget when one of them is deleted."""
        self._weak_traces = tuple(map(weakref.ref, self._traces))
        for trace in self._traces:
            weakref.finalize(trace, lambda: get_notebook_loop().loop.call_soon_threadsafe(self.close)).atexit = False

    def _receive(self, _widget: object, content: Any, _buffers: object) -> None:
        self._server.receive(content)

    def _open_app(self) -> OpenApp:
        if not self._traces:
            traces = [reference() for reference in self._weak_traces]
            if not traces or None in traces:
                raise SettingError("the trace of this cell is no longer in the kernel; run the cell again")
            self._traces = tuple(trace for trace in traces if trace is not None)
        library, self._library = self._library or _make_library(self._traces), None
        return OpenApp(make_router(library, None, get_notebook_loop().workers), library.close)

    def _release(self) -> None:
        """Release weakly held traces, after the last view has closed."""
        if self._weak_traces:
            self._traces, self._library = (), None


def make_display_bundle(trace: Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the MIME bundle and metadata of a trace."""
    data, metadata = make_cell_widget(trace)._repr_mimebundle_()
    return {**data, "text/plain": repr(trace)}, metadata


def make_cell_widget(trace: Trace) -> Widget:
    """Return the widget that a cell shows for a trace: the same one again, unless the trace has changed."""
    outline = [(name, tuple(layer.shape)) for name, layer in trace.layers.items()]
    widget, before = _WIDGETS.get(id(trace), (None, None))
    if widget is None or widget.comm is None or before != outline:
        if widget is not None:
            widget.close()
        widget = Widget(trace)
        widget.hold_weakly()
        weakref.finalize(trace, _WIDGETS.pop, id(trace), None).atexit = False
        _WIDGETS[id(trace)] = widget, outline
    return widget


_WIDGETS: dict[int, tuple[Widget, list[Any]]] = {}  # by id(trace)


def _make_address(trace: Trace, layer: int, head: int) -> str:
    heads = trace.layer(layer).shape[1]
    if not 0 <= head < heads:
        raise SettingError(f"Widget: expected a head from 0 to {heads - 1} in layer {layer}, got {head}")
    return f"#1/-/L{layer % len(trace)}H{head}/map"


def _make_library(traces: tuple[Trace, ...]) -> Library:
    library = Library(tile_bytes=TILE_BYTES)
    for trace, name in zip(traces, make_unique([trace.model or "trace" for trace in traces]), strict=True):
        library.add(trace, name=name)
    return library
