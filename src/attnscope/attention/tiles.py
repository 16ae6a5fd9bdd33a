"""Regions cut into kernel calls: rectangles that are full, causal from their own corner, or small and dense.

In: disjoint regions. Out: a short list of `Tile`s that cover the same cells, where equal tiles that follow each other
along the diagonal (the steps of a window, documents of one length) are one tile with a number of times. Integers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from attnscope.attention.regions import Region

NARROW_COLUMNS = 2048  # up to here a step along a band is one dense tile; beyond, its mask would be the larger cost
NARROW_ROWS = 64  # rows of a narrow step: few cells outside the band are scored
MAX_COLUMNS = 2**16  # of all repetitions of a tile together: their gradients stand side by side for a moment
WIDE_ROWS = 512  # rows of a wide step, which is cut into a dense left edge, a full middle and a causal right edge


class Kind(Enum):
    """What a kernel has to be told about a tile."""

    FULL = "full"
    CAUSAL = "causal"
    DENSE = "dense"


class Tile(NamedTuple):
    """A region for one kernel call, repeated `times` times, each time `step` rows and columns further on."""

    region: Region
    times: int = 1
    step: int = 0

    @property
    def kind(self) -> Kind:
        """How the kernel sees this tile."""
        region = self.region
        if not region.bounded_above and not region.bounded_below:
            return Kind.FULL
        from_corner = region.highest == region.left - region.top
        return Kind.CAUSAL if from_corner and not region.bounded_below else Kind.DENSE

    @property
    def height(self) -> int:
        """Rows of one repetition."""
        return self.region.bottom - self.region.top

    @property
    def width(self) -> int:
        """Columns of one repetition."""
        return self.region.right - self.region.left

    @property
    def last_row(self) -> int:
        """One past the last row of the last repetition."""
        return self.region.bottom + (self.times - 1) * self.step

    @property
    def cells(self) -> int:
        """Cells that the kernel scores: dense tiles are scored whole."""
        once = self.height * self.width if self.kind is Kind.DENSE else self.region.area
        return once * self.times


def cut(regions: Iterable[Region], *, joined: bool = True) -> tuple[Tile, ...]:
    """Tiles that cover exactly the cells of the regions; without `joined`, each stands for one time only."""
    pieces = [piece for region in regions for piece in _pieces(region)]
    return _coalesced(pieces) if joined else tuple(map(Tile, pieces))


def _pieces(region: Region) -> Iterator[Region]:
    if region.bounded_below:
        narrow = region.highest - region.lowest + NARROW_ROWS <= NARROW_COLUMNS
        rows = NARROW_ROWS if narrow else WIDE_ROWS
        for top in range(region.top, region.bottom, rows):
            for step in _tight(region._replace(top=top, bottom=min(top + rows, region.bottom))):
                yield from (step,) if narrow else _wide_step(step)
    elif region.bounded_above:
        corner = region.top + region.highest  # the last column of the first row: what lies left of it is seen by all
        if corner > region.left:
            yield from _tight(region._replace(right=corner))
        yield from _tight(region._replace(left=corner))
    else:
        yield region


def _wide_step(step: Region) -> Iterator[Region]:
    """Some rows of a band: the ragged left edge, the full middle and the ragged right edge."""
    middle_left = min(step.bottom - 1 + step.lowest, step.right)
    middle_right = max(middle_left, min(step.top + step.highest + 1, step.right))
    yield from _tight(step._replace(right=middle_left))
    yield from _tight(step._replace(left=middle_left, right=middle_right))
    for edge in _tight(step._replace(left=middle_right)):
        yield from _pieces(edge)


def _tight(region: Region) -> Iterator[Region]:
    tight = region.tightened()
    if tight is not None:
        yield tight


def _coalesced(pieces: Iterable[Region]) -> tuple[Tile, ...]:
    """Join pieces that follow each other along the diagonal, by a constant step of at least their height."""
    tiles: list[Tile] = []
    latest: dict[tuple[int, ...], int] = {}
    for piece in pieces:
        corner = piece.left - piece.top
        shape = (piece.bottom - piece.top, piece.right - piece.left, piece.lowest - corner, piece.highest - corner)
        at = latest.get(shape)
        joined = None if at is None else _extended(tiles[at], piece)
        if at is not None and joined is not None:
            tiles[at] = joined
        else:
            latest[shape] = len(tiles)
            tiles.append(Tile(piece))
    return tuple(tiles)


def _extended(tile: Tile, piece: Region) -> Tile | None:
    """The tile with one more repetition, if the piece is where that repetition would be."""
    first = tile.region
    down, across = piece.top - first.top, piece.left - first.left
    step = down if tile.times == 1 else tile.step
    if down != across or step < tile.height or down != tile.times * step:
        return None
    if (tile.times + 1) * tile.width > MAX_COLUMNS:
        return None
    return Tile(first, tile.times + 1, step)
