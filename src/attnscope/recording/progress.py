"""How far something has come, told to the caller or drawn on a terminal.

In: what the caller gave as `progress`. Out: a function to tell with. Does not know: what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bar

Progress = Callable[[int, int], object]
"""Called with how much has been done so far, and with all there is to do."""


@contextmanager
def told(progress: Progress | bool, doing: str) -> Iterator[Progress]:
    """The function to tell: the caller's own, or for True a bar on standard error, if that is a terminal."""
    if callable(progress):
        yield progress
        return
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not (progress and console.is_terminal)) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
