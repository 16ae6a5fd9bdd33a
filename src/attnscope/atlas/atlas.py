"""`HeadAtlas`: one head as map tiles at every zoom level, for many threads.

Fine tiles are computed on request and cached. Coarse tiles come from a pyramid. The first request for a tile of a long
head starts to build it in the background; until it is finished, coarse tiles are previews from a sample of rows.
In: a matrix of one head, and a cache that may be shared. Out: tiles encoded by `codec`.
Does not know: HTTP, traces. Memory: the pyramid, the matrix and the cache. Any thread may call every method.
"""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple

import numpy as np

from attnscope.atlas import codec
from attnscope.atlas.background import ForegroundLock, Job, Worker
from attnscope.atlas.cache import ByteCache
from attnscope.atlas.plan import COARSE_STRIDE, ZoomPlan, axis_edges
from attnscope.atlas.pyramid import EncodedTile, PooledBins, Pyramid
from attnscope.errors import AttnScopeError, SettingError, ShapeError
from attnscope.matrix import AttentionMatrix

MAX_WAIT_CELLS = 2**27  # of a matrix whose pyramid is worth waiting for
MAX_WAIT_SECONDS = 0.5
TILE_OVERHEAD_BYTES = 200  # of a cached tile, approximately

FOREGROUND = ForegroundLock()
WORKER = Worker()  # one per process, for all heads

TileState = Literal["exact", "pooled", "partial", "empty"]


class Tile(NamedTuple):
    """An encoded tile."""

    body: bytes
    """The bytes that `attnscope.atlas.codec` describes; none if the tile is empty."""
    state: TileState
    """"exact": single cells; "pooled": bins; "partial": bins from a sample of rows; "empty": all cells are masked."""


class HeadAtlas:
    """The map tiles of one head.

    Args:
        matrix: The attention weights of one head, (queries, keys).
        cache: Stores computed tiles; several atlases may share it.
        name: Identifies the head in the cache. Heads with other weights need other names.
        coarse_stride: The stride of the finest level of the pyramid, a power of two.

    >>> import torch
    >>> atlas = HeadAtlas(AttentionMatrix(torch.eye(4), torch.eye(4)), ByteCache(2**20), "a head")
    >>> body, state = atlas.tile(0, 0, 0, "mean")
    >>> state, len(body)
    ('exact', 48)
    """

    def __init__(
        self, matrix: AttentionMatrix, cache: ByteCache, name: str, *, coarse_stride: int = COARSE_STRIDE
    ) -> None:
        if len(matrix.shape) != 2:
            raise ShapeError(
                f"HeadAtlas: expected the matrix of one head, (queries, keys), got {tuple(matrix.shape)}; select one "
                "with .batch(b) and .head(h)"
            )
        self.matrix, self.name = matrix, name
        queries, keys = matrix.shape
        self.plan = ZoomPlan(queries, keys, coarse_stride)
        self._cache = cache
        self._pyramid = Pyramid(self.plan)
        self._job = Job(lambda *callbacks: self._pyramid.step(matrix, *callbacks), FOREGROUND)
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The size of the pyramid in bytes, without the matrix and the cache."""
        return self._pyramid.nbytes

    def tile(self, z: int, y: int, x: int, channel: str) -> Tile:
        """Return a tile.

        Args:
            z: The zoom level, from 0 to `plan.deepest`.
            y: The row of tiles.
            x: The column of tiles.
            channel: "mean" or "max" of the weights of each bin.

        Raises:
            IndexError: The plan has no such tile.
        """
        if channel not in ("mean", "max"):
            raise SettingError(f'tile: expected the channel "mean" or "max", got {channel!r}')
        self.plan.edges(z, y, x)
        if self.plan.coarse_levels:
            WORKER.submit(self._job)
        tile, state = self._coarse(z, y, x) if self.plan.stride(z) >= self.plan.coarse_stride else self._fine(z, y, x)
        return Tile(b"", "empty") if tile is None else Tile(getattr(tile, channel), state)

    def marginal(self, kind: str, z: int, index: int) -> bytes:
        """Return a sum per key or query along one tile of a level.

        Args:
            kind: "received", the attention that each key receives, or "entropy", that of each query in nats.
            z: The zoom level.
            index: The number of the tile along its axis.

        Returns:
            Two encoded rows of floats: mean and maximum over the positions of each bin. Until they are known, they are
            NaN and flagged as partial.

        Raises:
            SettingError: There is no such kind.
        """
        if kind not in ("received", "entropy"):
            raise SettingError(f'marginal: expected the kind "received" or "entropy", got {kind!r}')
        stride = self.plan.stride(z)
        edges = axis_edges(self.plan.keys if kind == "received" else self.plan.queries, stride, index)
        self._request_pyramid()
        known = self._pyramid.received if kind == "received" else self._pyramid.entropy
        if known is None:
            unknown = np.full((2, len(edges) - 1), np.nan)
            return codec.pack_floats(unknown, z=z, y=index, x=0, flags=codec.PARTIAL)
        starts, values = np.array(edges[:-1]) - edges[0], known[edges[0] : edges[-1]].astype(np.float64)
        mean = np.add.reduceat(values, starts) / np.diff(edges)
        rows = np.stack([mean, np.maximum.reduceat(values, starts)])
        return codec.pack_floats(rows, z=z, y=index, x=0, flags=codec.EXACT if stride == 1 else 0)

    def progress(self) -> float | None:
        """Return the finished share of the coarse levels, or None if they are not being built."""
        return self._job.progress

    def build(self) -> None:
        """Build the coarse levels, and wait until they are finished.

        Raises:
            Cancelled: The atlas was closed meanwhile.
        """
        self._request_pyramid()
        self._job.finished.wait()
        if self._job.error is not None:
            raise self._job.error

    def close(self) -> None:
        """Cancel background work; tiles remain available, and unfinished coarse tiles remain previews."""
        if not self._job.succeeded:
            WORKER.cancel(self._job)

    def _request_pyramid(self) -> None:
        """Build the pyramid in the background, or at once for a head without coarse levels."""
        if self.plan.coarse_levels:
            WORKER.submit(self._job)
            self._wait_briefly()
            return
        with self._lock, FOREGROUND.hold():
            while not self._job.finished.is_set():
                self._job.step(give_way=False)

    def _wait_briefly(self) -> None:
        if self.plan.queries * self.plan.keys <= MAX_WAIT_CELLS and not self._job.cancelled:
            self._job.finished.wait(MAX_WAIT_SECONDS)

    def _coarse(self, z: int, y: int, x: int) -> tuple[EncodedTile | None, TileState]:
        self._wait_briefly()
        error = self._job.error
        if error is not None and not self._job.cancelled:
            raise AttnScopeError(f"the coarse levels of {self.name} could not be built: {error}") from error
        if self._pyramid.has_row(z, y):
            return self._pyramid.tile(z, y, x), "pooled"
        return self._cached_tile(z, y, x, rows_per_bin=1), "partial"

    def _fine(self, z: int, y: int, x: int) -> tuple[EncodedTile | None, TileState]:
        return self._cached_tile(z, y, x, rows_per_bin=None), "exact" if self.plan.stride(z) == 1 else "pooled"

    def _cached_tile(self, z: int, y: int, x: int, rows_per_bin: int | None) -> EncodedTile | None:
        """Return a tile from the cache, or compute it from all rows or from a sample of each bin."""

        def compute() -> EncodedTile | None:
            with FOREGROUND.hold():
                edges = self.plan.edges(z, y, x)
                bins = self.matrix.bins(*edges, rows_per_bin=rows_per_bin, marginals=False)
                pooled = PooledBins.from_bins(bins)
            if rows_per_bin is not None:  # other rows may have cells where these are masked
                return pooled.encode(self.plan, z, y, x, codec.PARTIAL)
            return pooled.encode(self.plan, z, y, x) if pooled.cells.any() else None

        def size(tile: EncodedTile | None) -> int:
            return TILE_OVERHEAD_BYTES + (0 if tile is None else tile.nbytes)

        return self._cache.get((self.name, z, y, x, rows_per_bin), compute, size)
