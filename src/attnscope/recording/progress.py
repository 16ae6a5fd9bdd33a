"""Report progress to the caller, or draw a progress bar on a terminal.

In: what the caller gave as `progress`. Out: a function to call with the amount done. Does not know: what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bar

Progress = Callable[[int, int], object]
"""Called with the amount done so far and the total amount."""


@contextmanager
def report_progress(progress: Progress | bool, doing: str) -> Iterator[Progress]:
    """The function to call: the caller's own, or for True one that draws a bar if standard error is a terminal."""
    if callable(progress):
        yield progress
        return
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not (progress and console.is_terminal)) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
