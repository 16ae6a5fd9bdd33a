"""A server of synthetic heads, a browser in front of it, and the addresses between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.recording import Trace
from tests.explorer.picture import shown
from tests.explorer.serving import Handle, serving
from tests.explorer.synthetic import Synthetic

WINDOW: dict[str, Any] = {"width": 1120, "height": 740}


class Gallery:
    """Heads by names."""

    def __init__(self, browser: Browser, server: Handle, library: Library) -> None:
        self.browser, self.server, self.library = browser, server, library
        self.heads: dict[str, Synthetic] = {}
        self.traces: dict[str, str] = {}

    def hang(self, name: str, head: Synthetic, trace: Trace | None = None) -> None:
        """Add a head: a trace of its own, or the first head of a trace."""
        self.heads[name] = head
        self.traces[name] = self.library.add(trace or head.trace(), name=name)

    def build(self, name: str) -> None:
        """Wait for the coarse levels of the first head of a trace."""
        entry = self.library.entry(self.traces[name])
        assert entry
        self.library.head(entry, 0, 0).atlas.build()

    def address(self, name: str, query: str = "", head: int = 0) -> str:
        """A link; `query` is what it says about the view."""
        return f"{self.server.url}#1/{self.traces[name]}/L0H{head}/map{'?' if query else ''}{query}"

    def show(self, name: str, query: str = "r=-32,0", **options: Any) -> AbstractContextManager[Page]:
        """A page with a head, once it is drawn."""
        return shown(self.browser, self.address(name, query), **{**WINDOW, **options})


@contextmanager
def opened_gallery(browser: Browser) -> Iterator[Gallery]:
    """An empty one, until the end of the block."""
    library = Library()
    with serving(library, page=True) as server:
        yield Gallery(browser, server, library)
