"""The entry point of `Trace.explore`, `Trace.save_page`, `Trace.widget` and the display in notebooks."""

from __future__ import annotations

from typing import Any

from attnscope.explorer.launch import explore
from attnscope.explorer.static_export.page_file import save_page
from attnscope.recording import Trace

__all__ = ["display", "explore", "make_cell_widget", "make_widget", "save_page"]


def make_widget(*traces: Trace, **options: Any) -> Any:
    """Make a notebook widget."""
    from attnscope.explorer.widget import Widget

    return Widget(*traces, **options)


def display(trace: Trace) -> Any:
    """Return the MIME bundle that a notebook shows for the trace."""
    from attnscope.explorer.widget import make_display_bundle

    return make_display_bundle(trace)


def make_cell_widget(trace: Trace) -> Any:
    """Return the widget that a cell of a notebook shows for the trace."""
    from attnscope.explorer import widget

    return widget.make_cell_widget(trace)
