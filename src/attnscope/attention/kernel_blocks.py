"""Split regions into blocks for the fused kernel: rectangles that are full, causal from their own corner, or dense.

In: disjoint regions. Out: a short list of `KernelBlock`s that cover the same cells. Equal blocks that follow each other
along the diagonal (the steps of a window, documents of one length) become one block with repeats. Integers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from attnscope.attention.regions import Region

NARROW_COLUMNS = 2048  # up to here a step along a band is one dense block; beyond, its mask would be the larger cost
NARROW_ROWS = 64  # rows of a narrow step: few cells outside the band are scored
MAX_COLUMNS = 2**16  # of all repeats of a block together: their gradients are in memory at the same time
WIDE_ROWS = 512  # rows of a wide step, which is split into a dense left edge, a full middle and a causal right edge


class BlockKind(Enum):
    """How the kernel masks a block."""

    FULL = "full"
    CAUSAL = "causal"
    DENSE = "dense"


class KernelBlock(NamedTuple):
    """A region for one kernel call, repeated `repeats` times, each time `step` rows and columns further on."""

    region: Region
    repeats: int = 1
    step: int = 0

    @property
    def kind(self) -> BlockKind:
        """How the kernel masks this block."""
        region = self.region
        if not region.bounded_above and not region.bounded_below:
            return BlockKind.FULL
        from_corner = region.highest == region.left - region.top
        return BlockKind.CAUSAL if from_corner and not region.bounded_below else BlockKind.DENSE

    @property
    def height(self) -> int:
        """Rows of one repeat."""
        return self.region.bottom - self.region.top

    @property
    def width(self) -> int:
        """Columns of one repeat."""
        return self.region.right - self.region.left

    @property
    def row_stop(self) -> int:
        """One past the last row of the last repeat."""
        return self.region.bottom + (self.repeats - 1) * self.step

    @property
    def cells(self) -> int:
        """Cells that the kernel scores; dense blocks are scored completely."""
        once = self.height * self.width if self.kind is BlockKind.DENSE else self.region.area
        return once * self.repeats


def split_regions(regions: Iterable[Region], *, merge_repeats: bool = True) -> tuple[KernelBlock, ...]:
    """Return blocks that cover exactly the cells of the regions; without `merge_repeats`, each has one repeat."""
    parts = [part for region in regions for part in _split(region)]
    return _merge_repeats(parts) if merge_repeats else tuple(map(KernelBlock, parts))


def _split(region: Region) -> Iterator[Region]:
    """Yield the parts of a region that are full, causal from their corner, or small."""
    if region.bounded_below:
        narrow = region.highest - region.lowest + NARROW_ROWS <= NARROW_COLUMNS
        rows = NARROW_ROWS if narrow else WIDE_ROWS
        for top in range(region.top, region.bottom, rows):
            for step in _tighten(region._replace(top=top, bottom=min(top + rows, region.bottom))):
                yield from (step,) if narrow else _split_wide_step(step)
    elif region.bounded_above:
        corner = region.top + region.highest  # the last column of the first row: all rows have the columns left of it
        if corner > region.left:
            yield from _tighten(region._replace(right=corner))
        yield from _tighten(region._replace(left=corner))
    else:
        yield region


def _split_wide_step(step: Region) -> Iterator[Region]:
    """Yield the ragged left edge, the full middle and the ragged right edge of some rows of a band."""
    middle_left = min(step.bottom - 1 + step.lowest, step.right)
    middle_right = max(middle_left, min(step.top + step.highest + 1, step.right))
    yield from _tighten(step._replace(right=middle_left))
    yield from _tighten(step._replace(left=middle_left, right=middle_right))
    for edge in _tighten(step._replace(left=middle_right)):
        yield from _split(edge)


def _tighten(region: Region) -> Iterator[Region]:
    """Yield the tightened region, or nothing if it has no cell."""
    tight = region.tighten()
    if tight is not None:
        yield tight


def _merge_repeats(parts: Iterable[Region]) -> tuple[KernelBlock, ...]:
    """Merge parts that follow each other along the diagonal, by a constant step of at least their height."""
    blocks: list[KernelBlock] = []
    latest: dict[tuple[int, ...], int] = {}
    for part in parts:
        corner = part.left - part.top
        shape = (part.bottom - part.top, part.right - part.left, part.lowest - corner, part.highest - corner)
        index = latest.get(shape)
        extended = None if index is None else _extend(blocks[index], part)
        if index is not None and extended is not None:
            blocks[index] = extended
        else:
            latest[shape] = len(blocks)
            blocks.append(KernelBlock(part))
    return tuple(blocks)


def _extend(block: KernelBlock, part: Region) -> KernelBlock | None:
    """Return the block with one more repeat, if the part is where that repeat would be."""
    first = block.region
    down, across = part.top - first.top, part.left - first.left
    step = down if block.repeats == 1 else block.step
    if down != across or step < block.height or down != block.repeats * step:
        return None
    if (block.repeats + 1) * block.width > MAX_COLUMNS:
        return None
    return KernelBlock(first, block.repeats + 1, step)
