"""Which tiles a matrix has at which zoom level, and which rows and columns each of them shows. Integers only.

In: how many queries and keys there are. Out: levels, tiles and the edges of their bins. Level 0 is one tile; every
level halves the stride of the one before, down to the deepest, whose bins are single cells. Bins begin at position 0.
Does not know: weights, masks.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.errors import SettingError

TILE_SIZE = 256
"""Bins along each side of a tile."""

COARSE_STRIDE = 32  # from this stride on, tiles come from a pyramid; below, each is computed when it is asked for


@dataclass(frozen=True)
class ZoomPlan:
    """The levels of a matrix of queries x keys.

    >>> plan = ZoomPlan(131_072, 131_072)
    >>> plan.deepest, plan.stride(0), plan.count_tiles(2)
    (9, 512, (4, 4))
    """

    queries: int
    keys: int

    def __post_init__(self) -> None:
        if self.queries < 1 or self.keys < 1:
            raise SettingError(f"ZoomPlan: a map needs a query and a key at least, got {self.queries} x {self.keys}")

    @property
    def deepest(self) -> int:
        """The level that shows single cells; levels are 0 ... deepest."""
        return (-(-max(self.queries, self.keys) // TILE_SIZE) - 1).bit_length()

    @property
    def coarse(self) -> range:
        """The levels that come from a pyramid, coarsest last."""
        return range(self.deepest - (COARSE_STRIDE.bit_length() - 1), -1, -1)

    def stride(self, z: int) -> int:
        """How many positions a bin of this level covers along each axis."""
        if not 0 <= z <= self.deepest:
            raise IndexError(f"level {z}: a map of {self.queries} x {self.keys} has the levels 0 ... {self.deepest}")
        return 1 << (self.deepest - z)

    def tiles(self, z: int) -> tuple[int, int]:
        """How many tiles there are down and across."""
        covered = TILE_SIZE * self.stride(z)
        return -(-self.queries // covered), -(-self.keys // covered)

    def edges(self, z: int, y: int, x: int) -> tuple[list[int], list[int]]:
        """The edges of a tile's bins of rows and of columns; the last of an axis ends with the axis.

        >>> ZoomPlan(1000, 259).edges(1, 1, 0)[0][-2:], ZoomPlan(1000, 259).edges(2, 0, 1)[1]
        ([998, 1000], [256, 257, 258, 259])
        """
        down, across = self.tiles(z)
        if not (0 <= y < down and 0 <= x < across):
            raise IndexError(f"tile {y}, {x}: level {z} of this map has {down} x {across} tiles")
        return axis_edges(self.queries, self.stride(z), y), axis_edges(self.keys, self.stride(z), x)


def axis_edges(length: int, stride: int, block: int) -> list[int]:
    """The edges of the bins that a tile with this number has along an axis.

    >>> axis_edges(5, 2, 0)
    [0, 2, 4, 5]
    """
    start, stop = TILE_SIZE * stride * block, min(TILE_SIZE * stride * (block + 1), length)
    if not 0 <= start < stop:
        raise IndexError(f"block {block}: an axis of {length} at stride {stride} ends before it")
    return [*range(start, stop, stride), stop]
