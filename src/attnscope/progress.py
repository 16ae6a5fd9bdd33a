"""Progress on standard error: bars on a terminal, and elsewhere a plain line now and then.

In: amounts done, or what the caller of a function gave as `progress`. Does not know: what is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

PLAIN_LINE_SECONDS = 10.0
"""The time between two status lines where standard error is not a terminal."""

Progress = Callable[[int, int], object]
"""Called with the amount done so far and the total amount."""


class PlainLines:
    """Prints at most one line in `PLAIN_LINE_SECONDS`, and none on a terminal.

    Args:
        console: Where to print.
        delay: Seconds before the first line.
    """

    def __init__(self, console: Console, delay: float = PLAIN_LINE_SECONDS) -> None:
        self._console, self._next = console, time.monotonic() + delay

    def print(self, text: str) -> None:
        """Print a line if enough time has passed."""
        if not self._console.is_terminal and time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_LINE_SECONDS
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class ProgressBar(RichProgress):
    """Transient progress bars on standard error; where that is not a terminal, a plain line now and then.

    Args:
        *columns: The columns of rich; its own if there are none.
        enabled: False shows nothing.
    """

    def __init__(self, *columns: str | ProgressColumn, enabled: bool = True) -> None:
        console = Console(stderr=True, quiet=not enabled)
        super().__init__(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal))
        self._lines = PlainLines(console)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change the amount done, the total or the description of a task."""
        super().update(task_id, **changes)
        task = self._tasks[task_id]
        amounts = "" if task.total is None else f": {task.completed:,.0f} of {task.total:,.0f}"
        self._lines.print(f"{task.description}{amounts}")


@contextmanager
def report_progress(progress: Progress | bool, description: str) -> Iterator[Progress]:
    """The function to call: the caller's own, or for True one that shows progress on standard error."""
    if callable(progress):
        yield progress
        return
    with ProgressBar(enabled=progress) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


@contextmanager
def show_status(description: str) -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done on standard error, after `description`."""
    console = Console(stderr=True)
    lines = PlainLines(console)
    with console.status(description) as status:

        def update(what: str) -> None:
            status.update(f"{description} {what}")
            lines.print(f"{description} {what}")

        yield update


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
        self._bar = RichProgress(
            TextColumn(counter),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            transient=True,
            disable=not (enabled and self._console.is_terminal),
        )
        self._task = self._bar.add_task("", total=total, status="")
        self._lines = PlainLines(self._console, delay)

    def __enter__(self) -> StatusBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, completed: float, status: str, plain: str, total: float | None = None) -> None:
        """Show the amount done and a status text; `plain` precedes the status in a plain line."""
        self._bar.update(self._task, completed=completed, total=total, status=status)
        self._lines.print(f"{plain}  {status}")

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)
