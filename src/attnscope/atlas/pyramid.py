"""The coarse levels of one head, and what its rows and columns have in all, from one pass over the matrix.

Sums, counts and maxima are found at the finest of the coarse strides, one row of tiles at a time; every coarser level
is folded two by two from those numbers, never from codes, and each is encoded once. In: a matrix of one head. Out:
tiles as bytes, and a number for each query and key. Does not know: who asks, and when. Memory: the codes, and a few
rows of tiles.
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
from attnscope.atlas.plan import COARSE_STRIDE, TILE_SIZE, ZoomPlan, axis_edges
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.bins import Bins

SHORT = 2**20  # bytes at a time for the normalisers: small steps, between which others have their turn
LSE_SHARE = 0.5  # of the time of a pass, about


class Pooled(NamedTuple):
    """Sum, count and maximum of bins, (rows, columns)."""

    total: NDArray[np.float64]
    cells: NDArray[np.int64]
    largest: NDArray[np.float64]

    @staticmethod
    def of(bins: Bins) -> Pooled:
        """Those of one head; weights that are not numbers are refused, for they would look masked."""
        total, cells, largest = (part.cpu() for part in bins[:3])
        if not total.isfinite().all():
            raise UnsupportedError(
                "this head has weights that are not numbers (NaN): its queries or keys have some; look for where the "
                "model made them"
            )
        return Pooled(total.double().numpy(), cells.numpy(), largest.double().numpy())

    def folded(self) -> Pooled:
        """Two by two bins as one; an odd last one stays alone."""
        down, across = self.cells.shape
        wider = ((0, down % 2), (0, across % 2))

        def blocks(values: NDArray) -> NDArray:
            return np.pad(values, wider).reshape((down + 1) // 2, 2, (across + 1) // 2, 2)

        return Pooled(blocks(self.total).sum((1, 3)), blocks(self.cells).sum((1, 3)), blocks(self.largest).max((1, 3)))

    def columns(self, start: int, stop: int) -> Pooled:
        """Some columns of bins."""
        return Pooled(self.total[:, start:stop], self.cells[:, start:stop], self.largest[:, start:stop])

    def bodies(self, plan: ZoomPlan, z: int, y: int, x: int, flags: int = 0) -> EncodedTile:
        """The tile that these bins are, in both channels."""
        rows, columns = plan.edges(z, y, x)
        everything = (rows[-1] - rows[0]) * (columns[-1] - columns[0])
        if not flags & codec.PARTIAL and int(self.cells.sum()) < everything:
            flags |= codec.PARTLY_MASKED
        if plan.stride(z) == 1:
            flags |= codec.EXACT

        def body(channel: int, values: NDArray) -> bytes:
            codes = codec.encode(values, self.cells)
            shape = codes.shape[0], codes.shape[1]
            header = codec.Header(codec.U8LOG, channel, flags, *shape, z, y, x, *codec.log2_range(values))
            return header.pack() + codes.tobytes()

        return EncodedTile(body(codec.MEAN, self.total / self.cells.clip(min=1)), body(codec.MAX, self.largest))


class EncodedTile(NamedTuple):
    """A tile in both channels."""

    mean: bytes
    max: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return len(self.mean) + len(self.max)


class Pyramid:
    """The coarse tiles of a head as far as they are known, and its marginals once all of them are."""

    def __init__(self, plan: ZoomPlan) -> None:
        self.plan = plan
        self.entropy: NDArray[np.float32] | None = None  # of each query, in nats
        self.received: NDArray[np.float32] | None = None  # of each key, from all queries together
        self._tiles: dict[tuple[int, int, int], EncodedTile] = {}
        self._rows_done = dict.fromkeys(plan.coarse, 0)
        self._levels = _Levels(plan, self._tiles, self._rows_done)
        self._normalised = False
        self._entropies: list[Tensor] = []
        self._received = torch.zeros(plan.keys, dtype=torch.float64)

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        marginals = [part.nbytes for part in (self.entropy, self.received) if part is not None]
        return sum(bodies.nbytes for bodies in list(self._tiles.values())) + sum(marginals)

    def known(self, z: int, y: int) -> bool:
        """Whether a row of tiles is there; those of its tiles that are not have no cell."""
        return y < self._rows_done[z]

    def tile(self, z: int, y: int, x: int) -> EncodedTile | None:
        """A tile of a row that is known; None where the mask hides all of it."""
        return self._tiles.get((z, y, x))

    def advance(
        self, matrix: AttentionMatrix, progress: Callable[[float], object], cancelled: Callable[[], bool]
    ) -> bool:
        """One step, and whether it was the last: the normalisers, then a row of the finest tiles at a time.

        `Cancelled` leaves what the steps before have found.
        """
        if not self._normalised:
            with suppress(UnsupportedError):  # weights that are already there have no normalisers
                _ = matrix.with_options(
                    max_bytes=SHORT, progress=_part(progress, 0.0, LSE_SHARE), should_stop=cancelled
                ).lse
            self._normalised = True
            return False
        queries, keys = matrix.shape
        count, strip = -(-queries // (TILE_SIZE * COARSE_STRIDE)), len(self._entropies)
        start, stop = (LSE_SHARE + (1 - LSE_SHARE) * (at / count) ** 2 for at in (strip, strip + 1))
        planned = matrix.with_options(progress=_part(progress, start, stop), should_stop=cancelled)
        found = planned.bins(axis_edges(queries, COARSE_STRIDE, strip), [*range(0, keys, COARSE_STRIDE), keys])
        self._levels.add(0, Pooled.of(found))
        self._entropies.append(found.entropy.float().cpu())
        self._received += found.received.double().cpu()
        if strip + 1 < count:
            return False
        self._levels.finish()
        self.entropy, self.received = torch.cat(self._entropies).numpy(), self._received.float().numpy()
        return True


class _Levels:
    """Rows of tiles on their way from the finest coarse level up."""

    def __init__(self, plan: ZoomPlan, tiles: dict, rows_done: dict[int, int]) -> None:
        self.plan, self.tiles, self.rows_done = plan, tiles, rows_done
        self.waiting: list[list[Pooled]] = [[] for _ in plan.coarse]

    def add(self, level: int, part: Pooled) -> None:
        """Take rows of bins of a level, and pass them on once they are a row of tiles."""
        if level < len(self.waiting):
            self.waiting[level].append(part)
            if sum(len(some.cells) for some in self.waiting[level]) == TILE_SIZE:
                self._pass_on(level)

    def finish(self) -> None:
        """Pass on what is left at the lower edge of the matrix."""
        for level, waiting in enumerate(self.waiting):
            if waiting:
                self._pass_on(level)

    def _pass_on(self, level: int) -> None:
        row = Pooled(*(np.concatenate(parts) for parts in zip(*self.waiting[level], strict=True)))
        self.waiting[level] = []
        z = self.plan.coarse[level]
        y = self.rows_done[z]
        for x in range(self.plan.count_tiles(z)[1]):
            part = row.columns(x * TILE_SIZE, (x + 1) * TILE_SIZE)
            if part.cells.any():
                self.tiles[z, y, x] = part.bodies(self.plan, z, y, x)
        self.rows_done[z] = y + 1
        self.add(level + 1, row.folded())


def _part(progress: Callable[[float], object], start: float, stop: float) -> Callable[[float], object]:
    return lambda share: progress(start + (stop - start) * share)
