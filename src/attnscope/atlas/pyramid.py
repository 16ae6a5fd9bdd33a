"""The coarse levels of one head, and the sums of its rows and columns, from one pass over the matrix.

Sums, counts and maxima are computed at the finest coarse stride, one row of tiles at a time. Every coarser level is
downsampled two by two from those numbers, not from codes, and encoded once. In: a matrix of one head. Out: tiles as
bytes, and a number per query and key. Does not know: who requests a tile, and when. Memory: the encoded tiles, and a
few rows of tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.atlas import codec
from attnscope.atlas.plan import TILE_SIZE, ZoomPlan, axis_edges
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.bins import Bins

LSE_STEP_BYTES = 2**20  # small steps, between which foreground work can run
LSE_SHARE = 0.5  # of the time of a pass, approximately


class EncodedTile(NamedTuple):
    """A tile as bytes, in both channels."""

    mean: bytes
    max: bytes

    @property
    def nbytes(self) -> int:
        """The size of both channels."""
        return len(self.mean) + len(self.max)


class PooledBins(NamedTuple):
    """Sum, number of unmasked cells and maximum of bins, (rows, columns) each."""

    total: NDArray[np.float64]
    cells: NDArray[np.int64]
    largest: NDArray[np.float64]

    @staticmethod
    def from_bins(bins: Bins) -> PooledBins:
        """Convert the bins of one head; NaN raises, because it would look masked."""
        total, cells, largest = (part.cpu() for part in bins[:3])
        if not total.isfinite().all():
            raise UnsupportedError(
                "this head has NaN attention weights, because its queries or keys contain NaN or infinity; check the "
                "model's activations"
            )
        return PooledBins(total.double().numpy(), cells.numpy(), largest.double().numpy())

    def downsample(self) -> PooledBins:
        """Merge two by two bins; an odd last row or column stays alone."""
        down, across = self.cells.shape
        padding = ((0, down % 2), (0, across % 2))

        def pairs(values: NDArray) -> NDArray:
            return np.pad(values, padding).reshape((down + 1) // 2, 2, (across + 1) // 2, 2)

        total, cells, largest = pairs(self.total), pairs(self.cells), pairs(self.largest)
        return PooledBins(total.sum((1, 3)), cells.sum((1, 3)), largest.max((1, 3)))

    def columns(self, start: int, stop: int) -> PooledBins:
        """Return some columns."""
        return PooledBins(self.total[:, start:stop], self.cells[:, start:stop], self.largest[:, start:stop])

    def encode(self, plan: ZoomPlan, z: int, y: int, x: int, flags: int = 0) -> EncodedTile:
        """Encode these bins as a tile."""
        rows, columns = plan.edges(z, y, x)
        num_cells = (rows[-1] - rows[0]) * (columns[-1] - columns[0])
        if not flags & codec.PARTIAL and int(self.cells.sum()) < num_cells:
            flags |= codec.PARTLY_MASKED
        if plan.stride(z) == 1:
            flags |= codec.EXACT
        mean = self.total / self.cells.clip(min=1)
        return EncodedTile(
            codec.pack_codes(mean, self.cells, codec.MEAN, z=z, y=y, x=x, flags=flags),
            codec.pack_codes(self.largest, self.cells, codec.MAX, z=z, y=y, x=x, flags=flags),
        )


class Pyramid:
    """The coarse tiles of a head that are finished so far, and its marginals once all tiles are."""

    def __init__(self, plan: ZoomPlan) -> None:
        self.plan = plan
        self.entropy: NDArray[np.float32] | None = None  # of each query, in nats
        self.received: NDArray[np.float32] | None = None  # by each key, summed over all queries
        self._tiles: dict[tuple[int, int, int], EncodedTile] = {}
        self._finished_rows = dict.fromkeys(plan.coarse_levels, 0)
        self._levels = _LevelBuilder(plan, self._tiles, self._finished_rows)
        self._has_lse = False
        self._entropies: list[Tensor] = []
        self._received = torch.zeros(plan.keys, dtype=torch.float64)

    @property
    def nbytes(self) -> int:
        """The size of all tiles and marginals."""
        marginals = [part.nbytes for part in (self.entropy, self.received) if part is not None]
        return sum(tile.nbytes for tile in list(self._tiles.values())) + sum(marginals)

    def has_row(self, z: int, y: int) -> bool:
        """Whether a row of tiles is finished; its missing tiles have no unmasked cell."""
        return y < self._finished_rows[z]

    def tile(self, z: int, y: int, x: int) -> EncodedTile | None:
        """Return a tile of a finished row, or None if all of it is masked."""
        return self._tiles.get((z, y, x))

    def step(
        self, matrix: AttentionMatrix, progress: Callable[[float], object], should_stop: Callable[[], bool]
    ) -> bool:
        """Compute the log-sum-exp in the first step, then one row of the finest tiles; return whether all is done.

        After `Cancelled`, the results of earlier steps remain.
        """
        if not self._has_lse:
            with suppress(UnsupportedError):  # dense weights have no lse
                _ = matrix.with_options(
                    max_bytes=LSE_STEP_BYTES, progress=_scale(progress, 0.0, LSE_SHARE), should_stop=should_stop
                ).lse
            self._has_lse = True
            return False
        (queries, keys), stride = matrix.shape, self.plan.coarse_stride
        count, row = -(-queries // (TILE_SIZE * stride)), len(self._entropies)
        start, stop = (LSE_SHARE + (1 - LSE_SHARE) * (at / count) ** 2 for at in (row, row + 1))
        matrix = matrix.with_options(progress=_scale(progress, start, stop), should_stop=should_stop)
        bins = matrix.bins(axis_edges(queries, stride, row), [*range(0, keys, stride), keys])
        self._levels.add(0, PooledBins.from_bins(bins))
        self._entropies.append(bins.entropy.float().cpu())
        self._received += bins.received.cpu().double()
        if row + 1 < count:
            return False
        self._levels.finish()
        self.entropy, self.received = torch.cat(self._entropies).numpy(), self._received.float().numpy()
        return True


class _LevelBuilder:
    """Collects rows of bins into rows of tiles, from the finest coarse level up."""

    def __init__(self, plan: ZoomPlan, tiles: dict, finished_rows: dict[int, int]) -> None:
        self.plan, self.tiles, self.finished_rows = plan, tiles, finished_rows
        self.pending: list[list[PooledBins]] = [[] for _ in plan.coarse_levels]

    def add(self, level: int, part: PooledBins) -> None:
        """Add rows of bins to a level, and encode them once they fill a row of tiles."""
        if level < len(self.pending):
            self.pending[level].append(part)
            if sum(len(some.cells) for some in self.pending[level]) == TILE_SIZE:
                self._encode_row(level)

    def finish(self) -> None:
        """Encode the rows that are left at the lower edge of the matrix."""
        for level, pending in enumerate(self.pending):
            if pending:
                self._encode_row(level)

    def _encode_row(self, level: int) -> None:
        row = PooledBins(*(np.concatenate(parts) for parts in zip(*self.pending[level], strict=True)))
        self.pending[level] = []
        z = self.plan.coarse_levels[level]
        y = self.finished_rows[z]
        for x in range(self.plan.count_tiles(z)[1]):
            part = row.columns(x * TILE_SIZE, (x + 1) * TILE_SIZE)
            if part.cells.any():
                self.tiles[z, y, x] = part.encode(self.plan, z, y, x)
        self.finished_rows[z] = y + 1
        self.add(level + 1, row.downsample())


def _scale(progress: Callable[[float], object], start: float, stop: float) -> Callable[[float], object]:
    return lambda share: progress(start + (stop - start) * share)
