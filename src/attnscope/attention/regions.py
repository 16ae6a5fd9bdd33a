"""Sets of (row, column) cells as short lists of banded rectangles. Integers only: no tensors, no memory in n.

A `Region` is a rectangle cut by two diagonals: rows [top, bottom), columns [left, right), lowest <= column - row <=
highest. Full, causal, window, prefix, document and padding masks are each a few such regions, and the regions are
closed under intersection, union and complement. Every function keeps its list disjoint, so cells are counted by
adding areas and partial attention over the pieces can be merged without scoring a cell twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Region(NamedTuple):
    """The cells of rows [top, bottom) and columns [left, right) with lowest <= column - row <= highest."""

    top: int
    bottom: int
    left: int
    right: int
    lowest: int
    highest: int

    @property
    def area(self) -> int:
        """How many cells the region holds (the region must be `tightened`)."""
        stops = _sum_of_clipped(self.top, self.bottom, self.highest + 1, high=self.right)
        starts = -_sum_of_clipped(-self.bottom + 1, -self.top + 1, -self.lowest, high=-self.left)
        return stops - starts

    @property
    def bounded_below(self) -> bool:
        """Whether the lower diagonal removes cells from the rectangle."""
        return self.lowest > self.left - (self.bottom - 1)

    @property
    def bounded_above(self) -> bool:
        """Whether the upper diagonal removes cells from the rectangle."""
        return self.highest < self.right - 1 - self.top

    def tightened(self) -> Region | None:
        """The same cells in the smallest rectangle, each row of which holds a cell; None when there is no cell."""
        top, bottom = max(self.top, self.left - self.highest), min(self.bottom, self.right - self.lowest)
        left, right = max(self.left, top + self.lowest), min(self.right, bottom + self.highest)
        if top >= bottom or left >= right or self.lowest > self.highest:
            return None
        lowest, highest = max(self.lowest, left - bottom + 1), min(self.highest, right - 1 - top)
        return Region(top, bottom, left, right, lowest, highest)


def rectangle(top: int, bottom: int, left: int, right: int) -> Region:
    """All cells of rows [top, bottom) and columns [left, right)."""
    return Region(top, bottom, left, right, left - bottom + 1, right - 1 - top)


def band(rows: int, columns: int, lowest: int | None, highest: int | None) -> tuple[Region, ...]:
    """The cells of a rows x columns matrix with lowest <= column - row <= highest; None leaves a side open.

    >>> [region.area for region in band(4, 4, None, 0)]
    [10]
    """
    whole = rectangle(0, rows, 0, columns)
    low = whole.lowest if lowest is None else lowest
    high = whole.highest if highest is None else highest
    return _tightened([whole._replace(lowest=low, highest=high)])


def intersection(first: Iterable[Region], second: Iterable[Region]) -> tuple[Region, ...]:
    """The cells that are in both sets."""
    second = tuple(second)
    return tuple(both for a in first for b in second if (both := _overlap(a, b)) is not None)


def difference(first: Iterable[Region], second: Iterable[Region]) -> tuple[Region, ...]:
    """The cells of the first set that are not in the second."""
    left = tuple(first)
    for b in second:
        left = tuple(piece for a in left for piece in _cut_out(a, b))
    return left


def union(first: Iterable[Region], second: Iterable[Region]) -> tuple[Region, ...]:
    """The cells that are in either set, each once."""
    first = tuple(first)
    return first + difference(second, first)


def complement(regions: Iterable[Region], rows: int, columns: int) -> tuple[Region, ...]:
    """The cells of a rows x columns matrix that are not in the set."""
    return difference(_tightened([rectangle(0, rows, 0, columns)]), regions)


def rows_between(regions: Iterable[Region], start: int, stop: int) -> tuple[Region, ...]:
    """The cells of rows [start, stop), with rows counted from `start`."""
    strips = (region._replace(top=max(region.top, start), bottom=min(region.bottom, stop)) for region in regions)
    return tuple(
        Region(r.top - start, r.bottom - start, r.left, r.right, r.lowest + start, r.highest + start)
        for r in _tightened(strips)
    )


def columns_between(regions: Iterable[Region], start: int, stop: int) -> tuple[Region, ...]:
    """The cells of columns [start, stop), with columns counted from `start`."""
    strips = (region._replace(left=max(region.left, start), right=min(region.right, stop)) for region in regions)
    return tuple(
        Region(r.top, r.bottom, r.left - start, r.right - start, r.lowest - start, r.highest - start)
        for r in _tightened(strips)
    )


def moved(regions: Iterable[Region], down: int, right: int) -> tuple[Region, ...]:
    """The cells moved down and to the right.

    >>> moved([rectangle(0, 2, 0, 3)], 1, 4) == (rectangle(1, 3, 4, 7),)
    True
    """
    turn = right - down
    return tuple(
        Region(r.top + down, r.bottom + down, r.left + right, r.right + right, r.lowest + turn, r.highest + turn)
        for r in regions
    )


def mirrored(regions: Iterable[Region], rows: int, columns: int) -> tuple[Region, ...]:
    """The cells of a rows x columns matrix mirrored in its other diagonal: (i, j) comes to (columns-1-j, rows-1-i).

    That is the transpose with both sequences reversed. A causal triangle stays one.

    >>> mirrored(band(3, 3, None, 0), 3, 3) == band(3, 3, None, 0)
    True
    """
    turn = rows - columns
    return tuple(
        Region(columns - r.right, columns - r.left, rows - r.bottom, rows - r.top, r.lowest + turn, r.highest + turn)
        for r in regions
    )


def area(regions: Iterable[Region]) -> int:
    """How many cells a disjoint set holds."""
    return sum(region.area for region in regions)


def _overlap(a: Region, b: Region) -> Region | None:
    return Region(
        max(a.top, b.top),
        min(a.bottom, b.bottom),
        max(a.left, b.left),
        min(a.right, b.right),
        max(a.lowest, b.lowest),
        min(a.highest, b.highest),
    ).tightened()


def _cut_out(a: Region, b: Region) -> tuple[Region, ...]:
    """The cells of `a` outside `b`: above, below, left and right of b's rectangle, then outside its diagonals."""
    core = _overlap(a, rectangle(b.top, b.bottom, b.left, b.right))
    if core is None:
        return (a,)
    top, bottom = max(a.top, b.top), min(a.bottom, b.bottom)
    return _tightened(
        [
            a._replace(bottom=top),
            a._replace(top=bottom),
            a._replace(top=top, bottom=bottom, right=min(a.right, b.left)),
            a._replace(top=top, bottom=bottom, left=max(a.left, b.right)),
            core._replace(highest=min(core.highest, b.lowest - 1)),
            core._replace(lowest=max(core.lowest, b.highest + 1)),
        ]
    )


def _tightened(regions: Iterable[Region]) -> tuple[Region, ...]:
    return tuple(tight for region in regions if (tight := region.tightened()) is not None)


def _sum_of_clipped(start: int, stop: int, shift: int, *, high: int) -> int:
    """The sum of min(i + shift, high) over start <= i < stop."""
    turn = min(max(high - shift, start), stop)  # from here on, high is the smaller one
    rising = (turn - start) * (start + turn - 1 + 2 * shift) // 2
    return rising + (stop - turn) * high
