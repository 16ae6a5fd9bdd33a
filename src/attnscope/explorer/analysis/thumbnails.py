"""Small pictures of all heads of a layer, one below the other in one body.

In: the matrix of a layer, (heads, queries, keys). Out: at most 64 x 64 bins a head, as bytes on the logarithmic scale
of tiles. Of a long text some evenly spread queries are looked at, and the header says how many. A head whose weights
are no numbers is all hidden. Does not know: servers. Memory: the cells of a short head, or O(n) a head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from attnscope.atlas import codec
from attnscope.atlas.pyramid import EncodedTile
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.bins import Bins
from attnscope.matrix.pooling import even_edges

BINS = 64
SHORT = 2**19  # cells of a head that is taken whole
MAX_CELLS = 2**22  # of a head; but one query of each bin at least


class Small(NamedTuple):
    """Sum, count and maximum of the bins of all heads, (heads, rows, columns), from so many queries."""

    total: NDArray
    cells: NDArray
    largest: NDArray
    num_sampled: int


def thumbnails(matrix: AttentionMatrix, layer: int) -> EncodedTile:
    """Both channels; `y` of the header is how many rows of bins a head has, `x` how many queries were looked at."""
    heads, queries, keys = matrix.shape
    total, cells, largest, num_sampled = _folded(matrix) if queries * keys <= SHORT else _sampled(matrix)
    sound = numpy.isfinite(total).all((1, 2), keepdims=True)
    cells = numpy.where(sound, cells, 0)
    flags = codec.PARTIAL * (num_sampled < queries) | codec.EXACT * (max(queries, keys) <= BINS)
    if cells.sum() < heads * num_sampled * keys:
        flags |= codec.PARTLY_MASKED

    def body(channel: int, values: NDArray) -> bytes:
        values = numpy.where(sound, values, 0.0)
        _, rows, columns = values.shape
        flat = values.reshape(-1, columns), cells.reshape(-1, columns)
        return codec.pack_codes(*flat, channel, z=layer, y=rows, x=num_sampled, flags=flags)

    return EncodedTile(body(codec.MEAN, total / cells.clip(min=1)), body(codec.MAX, largest))


def _folded(matrix: AttentionMatrix) -> Small:
    """Bins of any width, from single cells: bins of many widths would be walked one by one."""
    heads, queries, keys = matrix.shape
    rows, columns = (even_edges(count, min(BINS, count))[:-1] for count in (queries, keys))
    found = []
    for head in range(heads):
        parts = _numbers(matrix.head(head).bins(range(queries + 1), range(keys + 1)))
        ways = numpy.add, numpy.add, numpy.maximum
        found.append(
            [way.reduceat(way.reduceat(part, rows, 0), columns, 1) for way, part in zip(ways, parts, strict=True)]
        )
    total, cells, largest = (numpy.stack(parts) for parts in zip(*found, strict=True))
    return Small(total, cells, largest, queries)


def _sampled(matrix: AttentionMatrix) -> Small:
    """Bins of two widths, from some queries of each."""
    queries, keys = matrix.shape[-2:]
    rows, columns = two_widths(queries, BINS), two_widths(keys, BINS)
    each = max(1, MAX_CELLS // (keys * (len(rows) - 1)))
    found = matrix.bins(rows, columns, rows_per_bin=None if each > queries // (len(rows) - 1) else each)
    total, cells, largest = _numbers(found)
    return Small(total, cells, largest, found.entropy.shape[-1])


def two_widths(length: int, bins: int) -> list[int]:
    """Edges of at most so many bins, the wider ones first: at most one position wider than the others.

    >>> two_widths(11, 4), two_widths(3, 4)
    ([0, 3, 6, 9, 11], [0, 1, 2, 3])
    """
    bins = min(bins, length)
    width, wider = divmod(length, bins)
    return [at * width + min(at, wider) for at in range(bins + 1)]


def _numbers(found: Bins) -> list[NDArray]:
    total, cells, largest = (part.cpu() for part in found[:3])
    return [total.double().numpy(), cells.numpy(), largest.double().numpy()]
