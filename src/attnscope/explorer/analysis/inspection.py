"""Exact weights and statistics of one query, one key or one head.

In: the matrix of one head, (queries, keys). Out: rows, columns and blocks of weights as float32 with NaN where masked,
and reports. NaN weights raise UnsupportedError, because they would be shown as masked.
Does not know: servers, colours, tokens. Memory: the result; a profile takes some rows at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.explorer.analysis.slicing import slice_layer
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.heads import score_heads
from attnscope.heads.labels import MIXED, get_label
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.bins import Bins
from attnscope.recording import Trace
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.recorded import Layer

MAX_BINS = 4096
MAX_STRONGEST = 20
PROFILE_ROWS = 256
MAX_BLOCK_CELLS = 2**21
MIXED_MEANING = "Has no labelled pattern, or a mixture of several."


class Line(NamedTuple):
    """A row or column: exact weights, (1, length), or the mean and maximum of 2^level cells each, (2, bins)."""

    values: numpy.ndarray
    level: int


def row(matrix: AttentionMatrix, query: int) -> Line:
    """Return the weights of a query on all keys."""
    edges, level = _edges(matrix.shape[-1])
    return _line(matrix, [query, query + 1], edges, level)


def column(matrix: AttentionMatrix, key: int) -> Line:
    """Return the weights of all queries on a key."""
    edges, level = _edges(matrix.shape[-2])
    return _line(matrix, edges, [key, key + 1], level)


def cells(matrix: AttentionMatrix, queries: range, keys: range) -> numpy.ndarray:
    """Return a block of weights, (queries, keys), NaN where masked."""
    found = check_finite(matrix.bins(range(queries.start, queries.stop + 1), range(keys.start, keys.stop + 1)))
    return _as_floats(found.sums.masked_fill(found.visible_cells == 0, torch.nan))


def check_finite(found: Bins) -> Bins:
    """Return the bins; raises UnsupportedError if a visible weight is NaN."""
    check_weights(found.sums)
    return found


def query_report(matrix: AttentionMatrix, query: int) -> dict[str, Any]:
    """Report the visible keys of a query, its entropy, effective keys, mean distance and strongest keys."""
    queries, keys = matrix.shape[-2:]
    found = check_finite(matrix.bins([query, query + 1], [0, keys]))
    weights = found.received.cpu().double()  # of each key, from this query alone
    behind = query + keys - queries - torch.arange(keys)
    collision = float(weights.square().sum())
    return {
        "position": query,
        "visible_keys": int(found.visible_cells),
        "entropy": float(torch.special.entr(weights).sum()),
        "effective_keys": 1 / collision if collision else 0.0,
        "mean_distance": float((weights * behind).sum()),
        "first_token": float(weights[0]),
        "strongest": _strongest(weights),
    }


def key_report(matrix: AttentionMatrix, key: int) -> dict[str, Any]:
    """Report the queries that can attend to a key, the sum of their weights, and the strongest."""
    found = check_finite(matrix.bins(range(matrix.shape[-2] + 1), [key, key + 1]))
    weights = found.sums.flatten().cpu().double()
    return {
        "position": key,
        "visible_queries": int(found.visible_cells.sum()),
        "received": float(weights.sum()),
        "strongest": _strongest(weights),
    }


def distance_profile(matrix: AttentionMatrix) -> dict[str, Any]:
    """Report the mean attention by distance between query and key.

    `mass[k]` is the weight on keys `edges[k]` to `edges[k + 1] - 1` positions before the query, `ahead[k]` on those
    after it. It is the mean over queries with visible keys: all of them, or 256 evenly spaced.
    """
    queries, keys = matrix.shape[-2:]
    edges = [0, 1]
    while edges[-1] < max(queries, keys):
        edges.append(2 * edges[-1])
    chosen = torch.arange(queries) if queries <= PROFILE_ROWS else torch.linspace(0, queries - 1, PROFILE_ROWS).long()
    inner = torch.tensor(edges[1:-1])
    both = torch.zeros(2, len(edges) - 1, dtype=torch.float64)
    counted = 0
    for rows in chosen.split(max(1, MAX_BLOCK_CELLS // max(keys, 1))):
        weights = matrix[rows].cpu().double()
        check_weights(weights)
        distance = (rows + keys - queries)[:, None] - torch.arange(keys)
        place = torch.bucketize(distance.abs(), inner, right=True) + (distance < 0) * (len(edges) - 1)
        both.view(-1).index_add_(0, place.flatten(), weights.flatten())
        counted += int((weights.sum(-1) > 0).sum())
    behind, ahead = (both / max(counted, 1)).tolist()
    return {"edges": edges, "mass": behind, "ahead": ahead, "sampled_rows": len(chosen), "rows": queries}


def head_scores(
    trace: Trace, layer: int, head: int, cancelled: CancelCheck = never_cancelled
) -> tuple[list[dict[str, str]], dict[str, float]]:
    """Return the labels of one head with their meanings, and its defined scores."""
    alone = slice_layer(trace, layer, heads=[head], cancelled=cancelled)
    _check_head_is_finite(alone.layer(0))
    table = score_heads(alone, progress=False)
    labels = [{"name": name, "meaning": get_meaning(name)} for name in (table.labels or [()])[0]]
    scores = {name: float(column[0]) for name, column in table.columns.items() if not column[0].isnan()}
    return labels, scores


def get_meaning(label: str) -> str:
    """Return the meaning of a label."""
    return MIXED_MEANING if label == MIXED else get_label(label).meaning


def _edges(length: int) -> tuple[list[int], int]:
    """Compute the edges of at most 4,096 bins of 2^level positions.

    >>> edges, level = _edges(10_000)
    >>> edges[:3], edges[-2:], level
    ([0, 4, 8], [9996, 10000], 2)
    """
    level = 0
    while length > MAX_BINS << level:
        level += 1
    return [*range(0, length, 1 << level), length], level


def _line(matrix: AttentionMatrix, rows: Sequence[int], columns: Sequence[int], level: int) -> Line:
    found = check_finite(matrix.bins(rows, columns))
    total, count, largest = (part.flatten() for part in (found.sums, found.visible_cells, found.max))
    mean = total / count
    parts = [mean] if level == 0 else [mean, largest]
    return Line(_as_floats(torch.stack(parts).masked_fill(count == 0, torch.nan)), level)


def _check_head_is_finite(layer: AnyLayer) -> None:
    """Raise UnsupportedError for NaN weights, which scores would silently leave out."""
    if isinstance(layer, Layer):
        call = layer.merge_calls()
        if call.query.isfinite().all() and call.key.isfinite().all():
            return
    queries, keys = layer.shape[2:]
    check_finite(layer.matrix().bins([0, queries], [0, keys]))  # NaN in masked positions, such as padding, is allowed


def check_weights(weights: Tensor) -> None:
    """Raise UnsupportedError for NaN weights."""
    if not weights.isfinite().all():
        raise UnsupportedError("this head has weights that are not numbers (NaN); check the model and the recording")


def _strongest(weights: Tensor) -> list[list[int | float]]:
    """List at most 20 largest weights with their positions, largest first."""
    found = weights.topk(min(MAX_STRONGEST, len(weights)))
    return [[place, weight] for weight, place in zip(*(part.tolist() for part in found), strict=True) if weight > 0]


def _as_floats(values: Tensor) -> numpy.ndarray:
    return values.float().cpu().numpy()
