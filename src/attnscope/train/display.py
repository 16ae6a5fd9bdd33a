"""A run on a terminal: a bar with loss, speed and the time that is left, and a line for each thing that happens.

In: what the loop tells. Out: standard error, as a bar where that is a terminal and as plain lines where it is not.
Does not know: the loop. Memory: O(1).
"""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

QUIET = 10.0  # seconds between two plain lines


class Display:
    """Shows one run; a rank that is not the first shows nothing."""

    def __init__(self, steps: int, *, shown: bool):
        self.console = Console(stderr=True, highlight=False, quiet=not shown)
        self._bar = Progress(
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[told]}"),
            console=self.console,
            transient=True,
            disable=not (shown and self.console.is_terminal),
        )
        self._task = self._bar.add_task("training", total=steps, told="")
        self._last = 0.0
        self._steps = steps

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, step: int, loss: float, speed: float, share: float | None, seconds: float) -> None:
        """After a step: its loss, tokens a second, the share of what the machine can do, and the time that is left."""
        told = f"loss {loss:.3f}  {speed:,.0f} tokens/s" + ("" if share is None else f"  MFU {share:.0%}")
        told += f"  {timedelta(seconds=round(seconds))} left"
        self._bar.update(self._task, completed=step, told=told)
        if not self.console.is_terminal and time.monotonic() - self._last >= QUIET:
            self._last = time.monotonic()
            self.console.print(f"step {step:,} of {self._steps:,}  {told}", soft_wrap=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, soft_wrap=True)
