"""The walk over a matrix in blocks of rows and columns, past what a mask leaves empty. Integers only.

In: regions and block sizes. Out: for each block of rows, the blocks of columns that hold an allowed cell, and whether
all of their cells are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from attnscope.attention.regions import Region, area, intersection, rectangle


class Columns(NamedTuple):
    """Columns [left, right) beside some rows; `whole` when the mask allows every cell of the block."""

    left: int
    right: int
    whole: bool


class Rows(NamedTuple):
    """Rows [top, bottom) and the blocks of columns they have to look at."""

    top: int
    bottom: int
    columns: tuple[Columns, ...]


def walk(regions: Sequence[Region], block_rows: int, block_columns: int) -> Iterator[Rows]:
    """Blocks that together hold every cell of the regions; rows without a cell are not visited.

    >>> causal = (Region(0, 4, 0, 4, -3, 0),)
    >>> [(rows.top, rows.columns) for rows in walk(causal, 2, 2)][1]
    (2, (Columns(left=0, right=2, whole=True), Columns(left=2, right=4, whole=False)))
    """
    if not regions:
        return
    first, last = min(region.top for region in regions), max(region.bottom for region in regions)
    for top in range(first, last, block_rows):
        bottom = min(top + block_rows, last)
        beside = [region for region in regions if region.top < bottom and region.bottom > top]
        if beside:
            yield Rows(top, bottom, tuple(_columns(beside, top, bottom, block_columns)))


def _columns(regions: Sequence[Region], top: int, bottom: int, block_columns: int) -> Iterator[Columns]:
    strip = intersection(regions, [rectangle(top, bottom, 0, max(region.right for region in regions))])
    start, stop = min(region.left for region in strip), max(region.right for region in strip)
    for left in range(start, stop, block_columns):
        right = min(left + block_columns, stop)
        cells = area(intersection(strip, [rectangle(top, bottom, left, right)]))
        if cells:
            yield Columns(left, right, whole=cells == (bottom - top) * (right - left))
