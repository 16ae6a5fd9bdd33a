"""Splits computations on a matrix into steps, with a memory limit, progress and cancellation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from attnscope.attention.block_sizes import block_sizes
from attnscope.errors import Cancelled


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A memory limit per step, a progress callback and a stop condition; without a limit, that of the device.

    `start` and `stop` are the fractions of the whole computation between which this part reports its progress.
    """

    max_bytes: int | None = None
    progress: Callable[[float], object] | None = None
    should_stop: Callable[[], bool] | None = None
    start: float = 0.0
    stop: float = 1.0

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 2**20:
            raise ValueError(f"max_bytes: expected at least 2**20 (1 MiB), got {self.max_bytes}")

    def limit(self, device: torch.device) -> int:
        """The bytes that a step may use on a device."""
        return block_sizes(device).step_bytes if self.max_bytes is None else self.max_bytes

    def split(self, count: int) -> list[Schedule]:
        """Schedules for `count` parts of about equal length."""
        width = (self.stop - self.start) / count
        return [replace(self, start=self.start + at * width, stop=self.start + (at + 1) * width) for at in range(count)]

    def track(self, steps: Sequence[range]) -> Iterator[range]:
        """Yield the steps; check for cancellation before each and report progress after each."""
        total, done = max(sum(map(len, steps)), 1), 0
        for step in steps:
            self.check()
            yield step
            done += len(step)
            if self.progress is not None:
                self.progress(self.start + (self.stop - self.start) * done / total)

    def check(self) -> None:
        """Raise Cancelled if `should_stop` returns True."""
        if self.should_stop is not None and self.should_stop():
            raise Cancelled("the computation was cancelled: should_stop returned True")

    def steps(self, count: int, cells_each: float, bytes_each: int, device: torch.device) -> list[range]:
        """Split `count` rows or columns into ranges of as many scores and bytes as a step on a device may have."""
        cells = block_sizes(device).step_cells
        most = min(cells / max(cells_each, 1), self.limit(device) / max(bytes_each, 1))
        return ranges(count, max(1, min(count, int(most))))


def ranges(count: int, size: int) -> list[range]:
    """Split range(count) into ranges of at most `size`; a count of 0 gives one empty range.

    >>> ranges(5, 2)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [range(at, min(at + size, count)) for at in range(0, max(count, 1), size)]
