"""The viewer of traces, found through an entry point, so that recording does not depend on the explorer.

Does not know: what a viewer draws.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from attnscope.errors import MissingExtraError

GROUP = "attnscope.viewers"


class Viewer(Protocol):
    """A module or object that shows traces."""

    def explore(self, *traces: Any, **options: Any) -> Any:
        """Serve the traces to a browser."""
        ...

    def save_page(self, trace: Any, path: str | Path, *, layer: int | None, head: int | None) -> int:
        """Write a head to a static page, and return how many heads that has."""
        ...

    def make_widget(self, *traces: Any, **options: Any) -> Any:
        """A widget for a notebook."""
        ...

    def display(self, trace: Any) -> Any:
        """The MIME bundle that a notebook shows for the trace."""
        ...

    def make_cell_widget(self, trace: Any) -> Any:
        """The widget of that bundle, for notebooks that show objects."""
        ...


@cache
def load_viewer() -> Viewer:
    """The viewer that is installed.

    Raises:
        MissingExtraError: The installed distribution does not register a viewer.
    """
    for found in entry_points(group=GROUP):
        return found.load()
    raise MissingExtraError(f"no viewer is registered as {GROUP}; reinstall attnscope with pip")
