"""Thumbnails of all heads of a layer, one below the other in one body; or of one head.

In: the matrix of a layer, (heads, queries, keys), or of a head, (queries, keys). Out: at most 64 x 64 bins per head,
encoded as in tiles. Of a long text, evenly spaced queries are sampled, and the header contains their number. A head
with NaN weights is all masked. Does not know: servers. Memory: the cells of a short head, or O(n) per head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from attnscope.atlas import codec
from attnscope.atlas.pyramid import EncodedTile
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.bins import Bins
from attnscope.matrix.pooling import even_edges

BINS = 64
MAX_EXACT_CELLS = 2**19  # of a head that is not sampled
MAX_CELLS = 2**22  # per sampled head, with at least one query per bin


class PooledHeads(NamedTuple):
    """Sum, count and maximum of the bins of all heads, (heads, rows, columns), and the number of sampled queries."""

    total: NDArray
    cells: NDArray
    largest: NDArray
    num_sampled: int


def thumbnails(matrix: AttentionMatrix, layer: int) -> EncodedTile:
    """Make both channels; `y` of the header is the number of bin rows per head, `x` that of sampled queries."""
    *heads, queries, keys = matrix.shape
    total, cells, largest, num_sampled = (
        _pool_exact(matrix) if queries * keys <= MAX_EXACT_CELLS else _pool_sampled(matrix)
    )
    finite = numpy.isfinite(total).all((1, 2), keepdims=True)
    cells = numpy.where(finite, cells, 0)
    flags = codec.PARTIAL * (num_sampled < queries) | codec.EXACT * (max(queries, keys) <= BINS)
    if cells.sum() < math.prod(heads) * num_sampled * keys:
        flags |= codec.PARTLY_MASKED

    def body(channel: int, values: NDArray) -> bytes:
        values = numpy.where(finite, values, 0.0)
        _, rows, columns = values.shape
        flat = values.reshape(-1, columns), cells.reshape(-1, columns)
        return codec.pack_codes(*flat, channel, z=layer, y=rows, x=num_sampled, flags=flags)

    return EncodedTile(body(codec.MEAN, total / cells.clip(min=1)), body(codec.MAX, largest))


def _pool_exact(matrix: AttentionMatrix) -> PooledHeads:
    """Pool single cells into bins: bins of many widths would be computed one by one."""
    queries, keys = matrix.shape[-2:]
    rows, columns = (even_edges(count, min(BINS, count))[:-1] for count in (queries, keys))
    found = []
    for head in [matrix] if len(matrix.shape) == 2 else map(matrix.head, range(matrix.shape[0])):
        parts = _to_numpy(head.bins(range(queries + 1), range(keys + 1)))
        reducers = numpy.add, numpy.add, numpy.maximum
        found.append(
            [
                reduce.reduceat(reduce.reduceat(part, rows, 0), columns, 1)
                for reduce, part in zip(reducers, parts, strict=True)
            ]
        )
    total, cells, largest = (numpy.stack(parts) for parts in zip(*found, strict=True))
    return PooledHeads(total, cells, largest, queries)


def _pool_sampled(matrix: AttentionMatrix) -> PooledHeads:
    """Pool sampled queries into bins of two widths."""
    queries, keys = matrix.shape[-2:]
    rows, columns = split_evenly(queries, BINS), split_evenly(keys, BINS)
    each = max(1, MAX_CELLS // (keys * (len(rows) - 1)))
    found = matrix.bins(rows, columns, rows_per_bin=None if each > queries // (len(rows) - 1) else each)
    total, cells, largest = (part.reshape(-1, *part.shape[-2:]) for part in _to_numpy(found))
    return PooledHeads(total, cells, largest, found.entropy.shape[-1])


def split_evenly(length: int, bins: int) -> list[int]:
    """Compute the edges of at most `bins` bins whose widths differ by at most one, the wider ones first.

    >>> split_evenly(11, 4), split_evenly(3, 4)
    ([0, 3, 6, 9, 11], [0, 1, 2, 3])
    """
    bins = min(bins, length)
    width, wider = divmod(length, bins)
    return [at * width + min(at, wider) for at in range(bins + 1)]


def _to_numpy(found: Bins) -> list[NDArray]:
    total, cells, largest = (part.cpu() for part in found[:3])
    return [total.double().numpy(), cells.numpy(), largest.double().numpy()]
