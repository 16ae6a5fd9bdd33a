"""`Widget`: the explorer in a cell of a notebook, and a trace that shows itself there.

In: traces. Out: a widget that speaks with the browser over the notebook's own connection alone: no port is opened, and
nothing is asked of anybody else. Does not know: what is answered.
Memory: while somebody looks, the library's. Afterwards the traces; and of a trace that shows itself, nothing.
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

LOWEST, HEIGHT, HIGHEST = 240, 640, 4000  # pixels
MEMORY = 2**26  # bytes of tiles: a kernel has other things to hold


class Widget(import_extra("anywidget").AnyWidget):
    """The explorer of some traces; the first is shown first. It holds them until `close`, as every widget does.

    `state` is what is shown, as the address of the explorer's page names it: it follows the cell, and the cell it.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _build = traitlets.Unicode().tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(HEIGHT, min=LOWEST, max=HIGHEST).tag(sync=True)

    def __init__(self, *traces: Trace, layer: int = 0, head: int = 0, height: int = HEIGHT) -> None:
        """`layer` and `head` of the first trace are shown first, and `height` is in pixels."""
        if not traces or not all(isinstance(trace, Trace) for trace in traces):
            raise SettingError(
                "Widget: takes one trace or several, as attnscope.record and attnscope.open_trace make them"
            )
        if not LOWEST <= height <= HIGHEST:
            raise SettingError(f"Widget: the height is {LOWEST} to {HIGHEST:,} pixels, and {height} was asked for")
        heads = traces[0].layer(layer).shape[1]
        if not 0 <= head < heads:
            raise SettingError(f"Widget: head {head} was asked for, and layer {layer} has the heads 0 to {heads - 1}")
        files = read_assets()
        self._held: tuple[Trace, ...] = traces
        self._known: tuple[weakref.ref[Trace], ...] = ()  # who is held only while somebody looks
        self._library: Library | None = _library(traces)  # made now: what cannot be shown is refused here
        self._conversation = CommServer(self._open, self._tell, files=files, left=self._leave)
        super().__init__(
            _esm=(STATIC / "loader.js").read_text("utf-8"),
            _build=hashlib.blake2b(b"".join(files.values()), digest_size=8).hexdigest(),
            state=f"#1/-/L{layer % len(traces[0])}H{head}/map",
            height=height,
        )
        self.on_msg(self._hear)

    def close(self) -> None:
        """Take it out of all cells, and let go of whatever it holds."""
        if self.comm is None:
            return
        layout = self.layout
        super().close()
        layout.close()  # a widget of its own
        self._conversation.close()
        self._held, self._known, self._library = (), (), None

    def hold_weakly(self) -> None:
        """Hold the traces only while somebody looks; with the first of them, the widget goes."""
        self._known = tuple(map(weakref.ref, self._held))
        for trace in self._held:
            weakref.finalize(trace, lambda: get_notebook_loop().loop.call_soon_threadsafe(self.close)).atexit = False

    def _hear(self, _widget: object, content: Any, _buffers: object) -> None:
        self._conversation.hear(content)

    def _tell(self, content: dict[str, Any], parts: list[bytes]) -> None:
        self.send(content, parts)

    def _open(self) -> OpenApp:
        """An app over the traces; called when somebody asks and there is none."""
        if not self._held:
            held = [known() for known in self._known]
            if not held or None in held:
                raise SettingError("the trace of this cell is no longer in the kernel; run the cell again")
            self._held = tuple(trace for trace in held if trace is not None)
        library, self._library = self._library or _library(self._held), None
        return OpenApp(make_router(library, None, get_notebook_loop().work), library.close)

    def _leave(self) -> None:
        """Nobody looks any more."""
        if self._known:
            self._held, self._library = (), None


def make_display_bundle(trace: Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a notebook shows of a trace, and about it; the same widget each time, unless the trace has grown since."""
    outline = [(name, tuple(layer.shape)) for name, layer in trace.layers.items()]
    known, before = _WIDGETS.get(id(trace), (None, None))
    if known is None or known.comm is None or before != outline:
        if known is not None:
            known.close()
        known = Widget(trace)
        known.hold_weakly()
        weakref.finalize(trace, _WIDGETS.pop, id(trace), None).atexit = False
        _WIDGETS[id(trace)] = known, outline
    data, about = known._repr_mimebundle_()
    return {**data, "text/plain": repr(trace)}, about


_WIDGETS: dict[int, tuple[Widget, list[Any]]] = {}  # by the identity of the trace, which has no other name that lasts


def _library(traces: tuple[Trace, ...]) -> Library:
    library = Library(memory=MEMORY)
    for trace, name in zip(traces, make_unique([trace.model or "trace" for trace in traces]), strict=True):
        library.add(trace, name=name)
    return library
