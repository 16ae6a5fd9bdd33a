"""The numbers of a HeadVis tree, from the attention pattern of one sequence.

The definitions are those that Neuronpedia documents for its metrics. They differ from the head scores of AttnScope in
details: the first query counts, and induction leaves out weights below a threshold. In: a matrix of one sequence, and
its token ids. Out: sums over its queries, or its largest weights as a sparse pattern.
Does not know: files, models. Memory: `BLOCK_WEIGHTS` attention weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix

INDUCTION_THRESHOLD = 0.01
"""Smaller weights do not count as induction."""
KEYS_PER_QUERY = 8
"""A sparse pattern has at most so many keys per query."""
MIN_WEIGHT = 0.005
"""A sparse pattern has no smaller weights."""
DECIMALS = 4
BLOCK_WEIGHTS = 2**22


class HeadSums(NamedTuple):
    """Sums over the queries of one or more sequences, float64 (heads,)."""

    self_attention: NDArray[np.float64]
    previous: NDArray[np.float64]
    entropy: NDArray[np.float64]
    distance: NDArray[np.float64]
    squared_distance: NDArray[np.float64]
    induction: NDArray[np.float64]


class QueryCounts(NamedTuple):
    """The number of queries that the sums are divided by."""

    all: int
    previous: int
    """Queries with a token before them."""
    repeated: int
    """Queries whose token has occurred before."""

    @staticmethod
    def of(ids: Sequence[int]) -> QueryCounts:
        """Count the queries of a sequence.

        >>> QueryCounts.of([7, 8, 7])
        QueryCounts(all=3, previous=2, repeated=1)
        """
        return QueryCounts(len(ids), len(ids) - 1, len(ids) - len(set(ids)))


def sum_heads(matrix: AttentionMatrix, ids: Sequence[int]) -> tuple[HeadSums, NDArray[np.float64]]:
    """Sum the metrics of all heads over the queries of a sequence.

    Args:
        matrix: Attention weights (heads, tokens, tokens).
        ids: The token ids.

    Returns:
        The sums, and the largest weight of each head without the first query and the first key.

    Raises:
        UnsupportedError: A weight is not finite, or a query attends to no key.
    """
    tokens, positions = torch.tensor(ids), torch.arange(len(ids))
    sums = torch.zeros(len(HeadSums._fields), matrix.shape[0], dtype=torch.float64)
    largest = torch.zeros(matrix.shape[0], dtype=torch.float64)
    for rows, weights in _blocks(matrix):
        queries = positions[rows.start : rows.stop, None]
        distances = (queries - positions).abs().double()
        follows = torch.zeros(len(rows), len(ids), dtype=torch.bool)  # keys after an earlier occurrence of the token
        follows[:, 1:] = (tokens[:-1] == tokens[queries]) & (positions[1:] <= queries)
        induction = follows & (weights >= INDUCTION_THRESHOLD)
        sums += torch.stack(
            [
                (weights * (distances == 0)).sum((1, 2)),
                (weights * (queries - positions == 1)).sum((1, 2)),
                torch.special.entr(weights).sum((1, 2)),
                (weights * distances).sum((1, 2)),
                (weights * distances.square()).sum((1, 2)),
                weights.where(induction, 0.0).sum((1, 2)),
            ]
        )
        inner = weights[:, 1 if rows.start == 0 else 0 :, 1:]
        if inner.numel():
            largest = torch.maximum(largest, inner.amax((1, 2)))
    return HeadSums(*sums.numpy()), largest.numpy()


class SparsePattern(NamedTuple):
    """The largest weights of each query, sorted by query and key."""

    indices: list[int]
    """query * tokens + key."""
    values: list[float]


def find_largest_weights(matrix: AttentionMatrix) -> SparsePattern:
    """The largest weights of each query of one head.

    Args:
        matrix: Attention weights (tokens, tokens).

    >>> find_largest_weights(AttentionMatrix.from_dense(torch.tensor([[1.0, 0.0], [0.25, 0.75]])))
    SparsePattern(indices=[0, 2, 3], values=[1.0, 0.25, 0.75])
    """
    length = matrix.shape[-1]
    indices, values = list[NDArray[np.int64]](), list[NDArray[np.float64]]()
    for rows, (weights,) in _blocks(matrix):
        found = weights.topk(min(KEYS_PER_QUERY, length), dim=-1)
        flat = torch.arange(rows.start, rows.stop)[:, None] * length + found.indices
        kept = found.values >= MIN_WEIGHT
        order = flat[kept].argsort()
        indices.append(flat[kept][order].numpy())
        values.append(found.values[kept][order].numpy())
    return SparsePattern(np.concatenate(indices).tolist(), np.concatenate(values).round(DECIMALS).tolist())


def _blocks(matrix: AttentionMatrix) -> Iterator[tuple[range, Tensor]]:
    """Some rows of all heads at a time, as float64 (heads, rows, tokens) on the CPU."""
    *heads, queries, keys = matrix.shape
    size = max(1, BLOCK_WEIGHTS // (keys * max(1, *heads, 1)))
    for start in range(0, queries, size):
        rows = range(start, min(start + size, queries))
        weights = matrix[..., rows.start : rows.stop, :].cpu().double()
        if not bool(weights.isfinite().all()):
            raise UnsupportedError("headvis: an attention weight is not finite; a HeadVis tree cannot store it")
        if not bool(weights.any(-1).all()):
            raise UnsupportedError("headvis: a query attends to no key, such as one of padding; record without padding")
        yield rows, weights.reshape(-1, len(rows), keys)
