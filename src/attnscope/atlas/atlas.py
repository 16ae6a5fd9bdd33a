"""`HeadAtlas`: one head as a map of tiles at every zoom level, answered at once and from many threads.

Fine tiles are computed when they are asked for, and kept. Coarse ones come from a pyramid that the first question for
any tile of a long head starts in the background; until it is there, they are previews from some rows and say so.
In: a matrix of one head, and a cache that others may share. Out: bodies as `codec` describes them.
Does not know: the web, traces. Memory: the pyramid, beside the matrix and the cache. Any thread may call every method.
"""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple

import numpy as np

from attnscope.atlas import codec
from attnscope.atlas.background import Job, Turns, Worker
from attnscope.atlas.cache import ByteCache
from attnscope.atlas.plan import COARSE_STRIDE, ZoomPlan, axis_edges
from attnscope.atlas.pyramid import EncodedTile, Pooled, Pyramid
from attnscope.errors import AttnScopeError, SettingError, ShapeError
from attnscope.matrix import AttentionMatrix

SOON = 2**27  # cells of a head whose pyramid is worth waiting for
MOMENT = 0.5  # seconds to wait for it
BESIDE = 200  # bytes that a kept tile takes beside its bodies, about

FOREGROUND = Turns()
WORKER = Worker()  # one for this process, whatever heads are looked at

State = Literal["exact", "pooled", "partial", "empty"]


class Tile(NamedTuple):
    """A tile's body, and what it is: cells, bins, bins from some rows only, or nothing that the mask allows."""

    body: bytes
    state: State


class HeadAtlas:
    """The tiles of one head.

    `name` tells heads apart in a cache that they share: it names these very numbers, for as long as the cache lives.

    >>> import torch
    >>> atlas = HeadAtlas(AttentionMatrix(torch.eye(4), torch.eye(4)), ByteCache(2**20), "a head")
    >>> body, state = atlas.tile(0, 0, 0, "mean")
    >>> state, len(body)
    ('exact', 48)
    """

    def __init__(self, matrix: AttentionMatrix, cache: ByteCache, name: str) -> None:
        if len(matrix.shape) != 2:
            raise ShapeError(
                f"HeadAtlas: shows the matrix of one head, (queries, keys), and got {tuple(matrix.shape)}; take one by "
                ".batch(b) and .head(h)"
            )
        self.matrix, self.name = matrix, name
        self.plan = ZoomPlan(*matrix.shape)
        self._cache = cache
        self._pyramid = Pyramid(self.plan)
        self._job = Job(lambda *ways: self._pyramid.advance(matrix, *ways), FOREGROUND)
        self._here = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that are held beside the matrix and the cache."""
        return self._pyramid.nbytes

    def tile(self, z: int, y: int, x: int, channel: str) -> Tile:
        """A tile in the channel "mean" or "max"; IndexError where the plan has none."""
        if channel not in ("mean", "max"):
            raise SettingError(f'tile: the channel is "mean" or "max", got {channel!r}')
        self.plan.edges(z, y, x)
        if self.plan.coarse:
            WORKER.ask(self._job)
        bodies, state = self._coarse(z, y, x) if self.plan.stride(z) >= COARSE_STRIDE else self._fine(z, y, x)
        return Tile(b"", "empty") if bodies is None else Tile(getattr(bodies, channel), state)

    def marginal(self, kind: str, z: int, block: int) -> bytes:
        """What each key has "received", or the "entropy" of each query in nats, along a block of 256 bins of a level.

        Two rows of floats: mean and maximum over the positions of a bin. Until they are known, NaN in a partial body.
        """
        if kind not in ("received", "entropy"):
            raise SettingError(f'marginal: the kind is "received" or "entropy", got {kind!r}')
        stride = self.plan.stride(z)
        edges = axis_edges(self.plan.keys if kind == "received" else self.plan.queries, stride, block)
        self._ask_for_all()
        known = self._pyramid.received if kind == "received" else self._pyramid.entropy
        if known is None:
            nothing = np.full((2, len(edges) - 1), np.nan)
            return codec.pack_floats(nothing, z=z, y=block, x=0, flags=codec.PARTIAL)
        starts, values = np.array(edges[:-1]) - edges[0], known[edges[0] : edges[-1]].astype(np.float64)
        mean = np.add.reduceat(values, starts) / np.diff(edges)
        rows = np.stack([mean, np.maximum.reduceat(values, starts)])
        return codec.pack_floats(rows, z=z, y=block, x=0, flags=codec.EXACT if stride == 1 else 0)

    def progress(self) -> float | None:
        """How much of the coarse levels is there, 0 ... 1; None if nobody has asked, or they will not be there."""
        return self._job.progress

    def build(self) -> None:
        """Wait until the coarse levels are there; `Cancelled` if the atlas is closed meanwhile."""
        self._ask_for_all()
        self._job.finished.wait()
        if self._job.error is not None:
            raise self._job.error

    def close(self) -> None:
        """Stop what goes on in the background. Tiles can still be asked for, and what was not built stays a preview."""
        if not self._job.done:
            WORKER.stop(self._job)

    def _ask_for_all(self) -> None:
        """Have it in the background; a head without coarse levels takes so little that it is done here."""
        if self.plan.coarse:
            WORKER.ask(self._job)
            self._wait_a_moment()
            return
        with self._here, FOREGROUND.asking():
            while not self._job.finished.is_set():
                self._job.advance(giving_way=False)

    def _wait_a_moment(self) -> None:
        if self.plan.queries * self.plan.keys <= SOON and not self._job.stopped:
            self._job.finished.wait(MOMENT)

    def _coarse(self, z: int, y: int, x: int) -> tuple[EncodedTile | None, State]:
        self._wait_a_moment()
        error = self._job.error
        if error is not None and not self._job.stopped:
            raise AttnScopeError(f"the coarse levels of {self.name} could not be built: {error}") from error
        if self._pyramid.known(z, y):
            return self._pyramid.tile(z, y, x), "pooled"
        return self._kept(z, y, x, each=1), "partial"

    def _fine(self, z: int, y: int, x: int) -> tuple[EncodedTile | None, State]:
        return self._kept(z, y, x, each=None), "exact" if self.plan.stride(z) == 1 else "pooled"

    def _kept(self, z: int, y: int, x: int, each: int | None) -> EncodedTile | None:
        """A tile from the cache, computed now if it is not there: from all rows, or from some of each bin."""

        def make() -> EncodedTile | None:
            with FOREGROUND.asking():
                found = Pooled.of(self.matrix.bins(*self.plan.edges(z, y, x), rows_per_bin=each))
            if each is not None:  # rows that were not looked at may see what these do not
                return found.bodies(self.plan, z, y, x, codec.PARTIAL)
            return found.bodies(self.plan, z, y, x) if found.cells.any() else None

        def size(bodies: EncodedTile | None) -> int:
            return BESIDE + (0 if bodies is None else bodies.nbytes)

        return self._cache.get((self.name, z, y, x, each), make, size)
