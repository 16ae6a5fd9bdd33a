"""Report progress to the caller, or draw a progress bar on a terminal.

In: what the caller gave as `progress`. Out: a function to call with the amount done. Does not know: what is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

PLAIN_LINE_SECONDS = 10.0
"""The time between two status lines where standard error is not a terminal."""

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


class StatusBar:
    """A progress bar with a status text on standard error, or plain lines now and then if that is not a terminal.

    Args:
        counter: How the bar shows `completed` and `total`, in the format of rich.
        total: The total amount, if it is known.
        enabled: False shows nothing.
        delay: Seconds before the first plain line.
    """

    def __init__(self, counter: str, *, total: float | None = None, enabled: bool = True, delay: float = 0.0) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=not enabled)
        self._bar = Bar(
            TextColumn(counter),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            transient=True,
            disable=not (enabled and self._console.is_terminal),
        )
        self._task = self._bar.add_task("", total=total, status="")
        self._next_line = time.monotonic() + delay

    def __enter__(self) -> StatusBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, completed: float, status: str, plain: str, total: float | None = None) -> None:
        """Show the amount done and a status text; `plain` precedes the status in a plain line."""
        self._bar.update(self._task, completed=completed, total=total, status=status)
        if not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_LINE_SECONDS
            self.print(f"{plain}  {status}")

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)
