"""How long work on a matrix is cut into steps: within a memory budget, with progress, and stoppable between steps.

Integers and callbacks only; it knows no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from attnscope.errors import Cancelled

STEP_CELLS = 2**27  # scores of one step, all heads together: about a quarter of a second on two cores


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A memory budget in bytes, a callback that hears the share done, and a question whether to stop."""

    budget: int = 2**28
    progress: Callable[[float], object] | None = None
    cancelled: Callable[[], bool] | None = None
    start: float = 0.0
    stop: float = 1.0

    def __post_init__(self) -> None:
        if self.budget < 2**20:
            raise ValueError(f"budget={self.budget}: work on a matrix needs at least a megabyte (2**20 bytes)")

    def parts(self, count: int) -> list[Schedule]:
        """Schedules for so many stretches of work of about equal length."""
        width = (self.stop - self.start) / count
        return [replace(self, start=self.start + at * width, stop=self.start + (at + 1) * width) for at in range(count)]

    def follow(self, steps: Sequence[range]) -> Iterator[range]:
        """The steps one by one; asks before each whether to stop, and reports after each how far the work is."""
        total, done = max(sum(map(len, steps)), 1), 0
        for step in steps:
            self.check()
            yield step
            done += len(step)
            if self.progress is not None:
                self.progress(self.start + (self.stop - self.start) * done / total)

    def check(self) -> None:
        """Raise Cancelled if the caller has asked to stop."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled("the work was cancelled by the caller; the matrix can be used as before")

    def steps(self, count: int, cells_each: float, bytes_each: int) -> list[range]:
        """`count` rows (or columns) as ranges of at most STEP_CELLS scores and at most the budget in memory."""
        most = min(STEP_CELLS / max(cells_each, 1), self.budget / max(bytes_each, 1))
        return ranges(count, max(1, min(count, int(most))))


def ranges(count: int, size: int) -> list[range]:
    """0 ... count in ranges of at most this size; one empty range where there is nothing.

    >>> ranges(5, 2)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [range(at, min(at + size, count)) for at in range(0, max(count, 1), size)]
