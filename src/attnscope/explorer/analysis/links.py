"""What a token or a word looks at, or is looked at by, strongest first.

In: the matrix of one head, (queries, keys), and where words begin if words are asked about. Out: spans of tokens with
their weights. A word gives what its tokens give on average, and receives what they receive together, so that what it
gives sums to what a row sums to. Does not know: servers, texts. Memory: a row or a column.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from attnscope.explorer.analysis.inspection import check_finite
from attnscope.matrix import AttentionMatrix


def find_span(place: int, words: Sequence[int] | None, length: int) -> range:
    """The tokens of the word that a token belongs to; the token alone where there are no words.

    >>> find_span(2, [0, 1, 4], 9), find_span(8, [0, 1, 4], 9), find_span(3, None, 9)
    (range(1, 4), range(4, 9), range(3, 4))
    """
    if words is None:
        return range(place, place + 1)
    at = bisect_right(words, place)
    return range(words[at - 1], words[at] if at < len(words) else length)


def given(matrix: AttentionMatrix, own: range, words: Sequence[int] | None, most: int) -> dict[str, Any]:
    """What queries give to keys, or to words of keys: the mean of the queries."""
    found = check_finite(matrix.bins([own.start, own.stop], range(matrix.shape[-1] + 1)))
    weights, cells = found.sums.flatten().cpu().double().numpy(), found.visible_cells.flatten().cpu().numpy()
    starts, lengths = _spans(words, len(weights))
    return _told(own, starts, lengths, _added(weights, starts) / len(own), _added(cells, starts), most)


def received(matrix: AttentionMatrix, own: range, words: Sequence[int] | None, most: int) -> dict[str, Any]:
    """What keys receive together from queries, or from words of queries."""
    found = check_finite(matrix.bins(range(matrix.shape[-2] + 1), [own.start, own.stop]))
    weights, cells = found.sums.flatten().cpu().double().numpy(), found.visible_cells.flatten().cpu().numpy()
    starts, lengths = _spans(words, len(weights))
    return _told(own, starts, lengths, _added(weights, starts) / lengths, _added(cells, starts), most)


def _spans(words: Sequence[int] | None, length: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Where spans begin, and how many tokens they have."""
    starts = numpy.arange(length) if words is None else numpy.array(words, dtype=numpy.int64)
    return starts, numpy.diff(starts, append=length)


def _added(values: NDArray, starts: NDArray[numpy.int64]) -> NDArray:
    return values if len(values) == len(starts) else numpy.add.reduceat(values, starts)


def _told(
    own: range, starts: NDArray, lengths: NDArray, weights: NDArray[numpy.float64], cells: NDArray, most: int
) -> dict[str, Any]:
    order = numpy.argsort(-weights, kind="stable")[:most]
    some = zip(starts[order].tolist(), lengths[order].tolist(), weights[order].tolist(), strict=True)
    return {
        "own": [own.start, own.stop],
        "total": float(weights.sum()),
        "count": int((cells > 0).sum()),
        "links": [[start, start + length, float(f"{weight:.9g}")] for start, length, weight in some if weight > 0],
    }
