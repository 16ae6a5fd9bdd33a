"""The zoom levels of a matrix, and the rows and columns of each tile. Integers only.

In: the number of queries and keys. Out: levels, tiles and the edges of their bins. Level 0 is one tile; every level
halves the stride of the one before, down to the deepest, whose bins are single cells. Bins begin at position 0.
Does not know: weights, masks.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.errors import SettingError

TILE_SIZE = 256
"""The number of bins along each side of a tile."""

COARSE_STRIDE = 32  # from this stride on, tiles come from a pyramid; below, each is computed when it is asked for


@dataclass(frozen=True)
class ZoomPlan:
    """The zoom levels and tiles of a matrix (queries, keys).

    >>> plan = ZoomPlan(131_072, 131_072)
    >>> plan.deepest, plan.stride(0), plan.count_tiles(2)
    (9, 512, (4, 4))
    """

    queries: int
    keys: int
    coarse_stride: int = COARSE_STRIDE
    """The stride of the finest level of the pyramid: a power of two."""

    def __post_init__(self) -> None:
        if self.queries < 1 or self.keys < 1:
            raise SettingError(f"ZoomPlan: expected at least one query and one key, got {self.queries} x {self.keys}")

    @property
    def deepest(self) -> int:
        """The level that shows single cells; levels are 0 ... deepest."""
        return (-(-max(self.queries, self.keys) // TILE_SIZE) - 1).bit_length()

    @property
    def coarse_levels(self) -> range:
        """The levels that come from a pyramid, coarsest last.

        >>> list(ZoomPlan(8192, 8192).coarse_levels), list(ZoomPlan(8192, 8192, coarse_stride=8).coarse_levels)
        ([0], [2, 1, 0])
        """
        return range(self.deepest - (self.coarse_stride.bit_length() - 1), -1, -1)

    def stride(self, z: int) -> int:
        """Return how many positions a bin of this level covers along each axis.

        Args:
            z: The zoom level.

        Returns:
            A power of two.

        Raises:
            IndexError: There is no such level.
        """
        if not 0 <= z <= self.deepest:
            raise IndexError(f"expected a level from 0 to {self.deepest}, got {z}")
        return 1 << (self.deepest - z)

    def count_tiles(self, z: int) -> tuple[int, int]:
        """Return the number of tiles of a level, down and across.

        Args:
            z: The zoom level.

        Returns:
            Both numbers.

        Raises:
            IndexError: There is no such level.
        """
        covered = TILE_SIZE * self.stride(z)
        return -(-self.queries // covered), -(-self.keys // covered)

    def edges(self, z: int, y: int, x: int) -> tuple[list[int], list[int]]:
        """Return the edges of a tile's bins, of rows and of columns; the last bin may be narrower.

        Args:
            z: The zoom level.
            y: The number of the tile, downwards.
            x: The number of the tile, across.

        Returns:
            One more edge than bins along each axis.

        Raises:
            IndexError: There is no such tile.

        >>> ZoomPlan(1000, 259).edges(1, 1, 0)[0][-2:], ZoomPlan(1000, 259).edges(2, 0, 1)[1]
        ([998, 1000], [256, 257, 258, 259])
        """
        down, across = self.count_tiles(z)
        if not (0 <= y < down and 0 <= x < across):
            raise IndexError(f"expected one of the {down} x {across} tiles of level {z}, got {y}, {x}")
        return axis_edges(self.queries, self.stride(z), y), axis_edges(self.keys, self.stride(z), x)


def axis_edges(length: int, stride: int, index: int) -> list[int]:
    """Return the edges of the bins of a tile along an axis; `index` is the number of the tile.

    >>> axis_edges(5, 2, 0)
    [0, 2, 4, 5]
    """
    start, stop = TILE_SIZE * stride * index, min(TILE_SIZE * stride * (index + 1), length)
    if not 0 <= start < stop:
        raise IndexError(f"expected a tile of an axis of length {length} at stride {stride}, got {index}")
    return [*range(start, stop, stride), stop]
