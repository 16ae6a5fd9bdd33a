"""Iterate over a matrix in blocks of rows and columns, without the blocks that a mask leaves empty. Integers only.

In: regions and block sizes. Out: for each block of rows, the blocks of columns with an allowed cell, and whether all of
their cells are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from attnscope.attention.regions import Region, area, intersection, rectangle


class ColumnBlock(NamedTuple):
    """Columns [left, right) of a block of rows; `is_full` if the mask allows every cell."""

    left: int
    right: int
    is_full: bool


class RowBlock(NamedTuple):
    """Rows [top, bottom) and the blocks of columns with allowed cells."""

    top: int
    bottom: int
    columns: tuple[ColumnBlock, ...]


def iter_blocks(regions: Sequence[Region], block_rows: int, block_columns: int) -> Iterator[RowBlock]:
    """Yield blocks that together contain every cell of the regions; rows without a cell are skipped.

    >>> causal = (Region(0, 4, 0, 4, -3, 0),)
    >>> [(rows.top, rows.columns) for rows in iter_blocks(causal, 2, 2)][1]
    (2, (ColumnBlock(left=0, right=2, is_full=True), ColumnBlock(left=2, right=4, is_full=False)))
    """
    if not regions:
        return
    first, last = min(region.top for region in regions), max(region.bottom for region in regions)
    for top in range(first, last, block_rows):
        bottom = min(top + block_rows, last)
        crossing = [region for region in regions if region.top < bottom and region.bottom > top]
        if crossing:
            yield RowBlock(top, bottom, tuple(_iter_columns(crossing, top, bottom, block_columns)))


def _iter_columns(regions: Sequence[Region], top: int, bottom: int, block_columns: int) -> Iterator[ColumnBlock]:
    strip = intersection(regions, [rectangle(top, bottom, 0, max(region.right for region in regions))])
    start, stop = min(region.left for region in strip), max(region.right for region in strip)
    for left in range(start, stop, block_columns):
        right = min(left + block_columns, stop)
        cells = area(intersection(strip, [rectangle(top, bottom, left, right)]))
        if cells:
            yield ColumnBlock(left, right, is_full=cells == (bottom - top) * (right - left))
