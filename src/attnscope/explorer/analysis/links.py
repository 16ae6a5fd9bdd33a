"""What a token or word attends to, and what attends to it, strongest first.

In: the matrix of one head, (queries, keys), and the first token of each word for words. Out: spans of tokens with their
weights. As a query, a word has the mean weights of its tokens, so that they sum to 1; as a key, the sum of the weights
on its tokens. Does not know: servers, texts. Memory: a row or a column.
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
    """Find the tokens of the word that a token belongs to; without words, the token itself.

    >>> find_span(2, [0, 1, 4], 9), find_span(8, [0, 1, 4], 9), find_span(3, None, 9)
    (range(1, 4), range(4, 9), range(3, 4))
    """
    if words is None:
        return range(place, place + 1)
    at = bisect_right(words, place)
    return range(words[at - 1], words[at] if at < len(words) else length)


def attended_keys(matrix: AttentionMatrix, own: range, words: Sequence[int] | None, most: int) -> dict[str, Any]:
    """List the keys, or words of keys, that a span of queries attends to: the mean of the queries."""
    found = check_finite(matrix.bins([own.start, own.stop], range(matrix.shape[-1] + 1)))
    weights, cells = found.sums.flatten().cpu().double().numpy(), found.visible_cells.flatten().cpu().numpy()
    starts, lengths = _spans(words, len(weights))
    return _rank_links(own, starts, lengths, _sum_spans(weights, starts) / len(own), _sum_spans(cells, starts), most)


def attending_queries(matrix: AttentionMatrix, own: range, words: Sequence[int] | None, most: int) -> dict[str, Any]:
    """List the queries, or words of queries, that attend to a span of keys: the sum of the keys."""
    found = check_finite(matrix.bins(range(matrix.shape[-2] + 1), [own.start, own.stop]))
    weights, cells = found.sums.flatten().cpu().double().numpy(), found.visible_cells.flatten().cpu().numpy()
    starts, lengths = _spans(words, len(weights))
    return _rank_links(own, starts, lengths, _sum_spans(weights, starts) / lengths, _sum_spans(cells, starts), most)


def _spans(words: Sequence[int] | None, length: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return the start and length of each span."""
    starts = numpy.arange(length) if words is None else numpy.array(words, dtype=numpy.int64)
    return starts, numpy.diff(starts, append=length)


def _sum_spans(values: NDArray, starts: NDArray[numpy.int64]) -> NDArray:
    return values if len(values) == len(starts) else numpy.add.reduceat(values, starts)


def _rank_links(
    own: range, starts: NDArray, lengths: NDArray, weights: NDArray[numpy.float64], cells: NDArray, most: int
) -> dict[str, Any]:
    order = numpy.argsort(-weights, kind="stable")[:most]
    some = zip(starts[order].tolist(), lengths[order].tolist(), weights[order].tolist(), strict=True)
    return {
        "span": [own.start, own.stop],
        "total": float(weights.sum()),
        "count": int((cells > 0).sum()),
        "links": [[start, start + length, float(f"{weight:.9g}")] for start, length, weight in some if weight > 0],
    }
