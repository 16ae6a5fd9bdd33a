"""Sets of (row, column) cells as short lists of banded rectangles, in integers, without tensors or memory in n.

A `Region` is a rectangle cut by two diagonals: rows [top, bottom), columns [left, right), lowest <= column - row <=
highest. Full, causal, window, prefix, document and padding masks are each a few such regions, and the regions are
closed under intersection, union and complement. Every function keeps its list disjoint, so cells are counted by
adding areas, and partial attention over the regions can be merged without scoring a cell twice.
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
        """The number of cells; the region must be tightened."""
        stops = _clipped_sum(self.top, self.bottom, self.highest + 1, high=self.right)
        starts = -_clipped_sum(-self.bottom + 1, -self.top + 1, -self.lowest, high=-self.left)
        return stops - starts

    @property
    def bounded_below(self) -> bool:
        """Whether the lower diagonal removes cells from the rectangle."""
        return self.lowest > self.left - (self.bottom - 1)

    @property
    def bounded_above(self) -> bool:
        """Whether the upper diagonal removes cells from the rectangle."""
        return self.highest < self.right - 1 - self.top

    def tighten(self) -> Region | None:
        """Return the same cells in the smallest rectangle, each row of which has a cell; None if there is no cell."""
        top, bottom = max(self.top, self.left - self.highest), min(self.bottom, self.right - self.lowest)
        left, right = max(self.left, top + self.lowest), min(self.right, bottom + self.highest)
        if top >= bottom or left >= right or self.lowest > self.highest:
            return None
        lowest, highest = max(self.lowest, left - bottom + 1), min(self.highest, right - 1 - top)
        return Region(top, bottom, left, right, lowest, highest)


def rectangle(top: int, bottom: int, left: int, right: int) -> Region:
    """Return all cells of rows [top, bottom) and columns [left, right)."""
    return Region(top, bottom, left, right, left - bottom + 1, right - 1 - top)


def band(rows: int, columns: int, lowest: int | None, highest: int | None) -> tuple[Region, ...]:
    """Return the cells of a rows x columns matrix with lowest <= column - row <= highest; None leaves a side open.

    >>> [region.area for region in band(4, 4, None, 0)]
    [10]
    """
    whole = rectangle(0, rows, 0, columns)
    low = whole.lowest if lowest is None else lowest
    high = whole.highest if highest is None else highest
    return _tighten([whole._replace(lowest=low, highest=high)])


def intersection(first: Iterable[Region], second: Iterable[Region]) -> tuple[Region, ...]:
    """Return the cells that are in both sets."""
    second = tuple(second)
    return tuple(both for a in first for b in second if (both := _intersect(a, b)) is not None)


def difference(first: Iterable[Region], second: Iterable[Region]) -> tuple[Region, ...]:
    """Return the cells of the first set that are not in the second."""
    left = tuple(first)
    for b in second:
        left = tuple(piece for a in left for piece in _subtract(a, b))
    return left


def union(first: Iterable[Region], second: Iterable[Region]) -> tuple[Region, ...]:
    """Return the cells that are in either set, each once."""
    first = tuple(first)
    return first + difference(second, first)


def complement(regions: Iterable[Region], rows: int, columns: int) -> tuple[Region, ...]:
    """Return the cells of a rows x columns matrix that are not in the set."""
    return difference(_tighten([rectangle(0, rows, 0, columns)]), regions)


def crop_rows(regions: Iterable[Region], start: int, stop: int) -> tuple[Region, ...]:
    """Return the cells of rows [start, stop), with rows counted from `start`."""
    strips = (region._replace(top=max(region.top, start), bottom=min(region.bottom, stop)) for region in regions)
    return tuple(
        Region(r.top - start, r.bottom - start, r.left, r.right, r.lowest + start, r.highest + start)
        for r in _tighten(strips)
    )


def crop_columns(regions: Iterable[Region], start: int, stop: int) -> tuple[Region, ...]:
    """Return the cells of columns [start, stop), with columns counted from `start`."""
    strips = (region._replace(left=max(region.left, start), right=min(region.right, stop)) for region in regions)
    return tuple(
        Region(r.top, r.bottom, r.left - start, r.right - start, r.lowest - start, r.highest - start)
        for r in _tighten(strips)
    )


def shift(regions: Iterable[Region], down: int, right: int) -> tuple[Region, ...]:
    """Move the cells down and to the right.

    >>> shift([rectangle(0, 2, 0, 3)], 1, 4) == (rectangle(1, 3, 4, 7),)
    True
    """
    offset = right - down
    return tuple(
        Region(r.top + down, r.bottom + down, r.left + right, r.right + right, r.lowest + offset, r.highest + offset)
        for r in regions
    )


def mirror(regions: Iterable[Region], rows: int, columns: int) -> tuple[Region, ...]:
    """Mirror a rows x columns matrix in its other diagonal: cell (i, j) becomes (columns-1-j, rows-1-i).

    That is the transpose with both sequences reversed. A causal triangle stays a causal triangle.

    >>> mirror(band(3, 3, None, 0), 3, 3) == band(3, 3, None, 0)
    True
    """
    offset = rows - columns
    return tuple(
        Region(
            columns - r.right, columns - r.left, rows - r.bottom, rows - r.top, r.lowest + offset, r.highest + offset
        )
        for r in regions
    )


def area(regions: Iterable[Region]) -> int:
    """Return the number of cells of a disjoint set."""
    return sum(region.area for region in regions)


def _intersect(a: Region, b: Region) -> Region | None:
    return Region(
        max(a.top, b.top),
        min(a.bottom, b.bottom),
        max(a.left, b.left),
        min(a.right, b.right),
        max(a.lowest, b.lowest),
        min(a.highest, b.highest),
    ).tighten()


def _subtract(a: Region, b: Region) -> tuple[Region, ...]:
    """Return the cells of `a` outside `b`: around the rectangle of `b`, then outside its diagonals."""
    core = _intersect(a, rectangle(b.top, b.bottom, b.left, b.right))
    if core is None:
        return (a,)
    top, bottom = max(a.top, b.top), min(a.bottom, b.bottom)
    return _tighten(
        [
            a._replace(bottom=top),
            a._replace(top=bottom),
            a._replace(top=top, bottom=bottom, right=min(a.right, b.left)),
            a._replace(top=top, bottom=bottom, left=max(a.left, b.right)),
            core._replace(highest=min(core.highest, b.lowest - 1)),
            core._replace(lowest=max(core.lowest, b.highest + 1)),
        ]
    )


def _tighten(regions: Iterable[Region]) -> tuple[Region, ...]:
    return tuple(tight for region in regions if (tight := region.tighten()) is not None)


def _clipped_sum(start: int, stop: int, shift: int, *, high: int) -> int:
    """Return the sum of min(i + shift, high) over start <= i < stop."""
    turn = min(max(high - shift, start), stop)  # from here on, high is the smaller one
    rising = (turn - start) * (start + turn - 1 + 2 * shift) // 2
    return rising + (stop - turn) * high
