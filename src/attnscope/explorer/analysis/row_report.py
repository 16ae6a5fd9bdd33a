"""The softmax of one query, as vectors for the page: its strongest keys, and all other keys as one.

In: the matrix of one head, (queries, keys), a cell, and values if they were recorded. Out: JSON; infinite numbers are
null. A softmax over the listed keys and one more, whose score is the log-sum-exp of all others and whose value is their
mean by weight, gives the same weights and the same output as that over all keys.
Does not know: servers, models, texts. Memory: the weights of one query, and 16,384 values in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.explorer.analysis.weight_report import finite_or_none
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.weight_terms import WeightTerms

NUM_STRONGEST = 7
CHUNK_SIZE = 16_384  # values that are in memory in float64


def row_report(matrix: AttentionMatrix, query: int, key: int, *, values: Tensor | None = None) -> dict[str, Any]:
    """Report the vectors and scores of a query, of a key and of the strongest keys, in order of their positions.

    Args:
        matrix: The matrix of one head.
        query: The position of the query.
        key: The position of a key that is listed whatever its weight.
        values: The values of the head, (keys, dim), if they were recorded.

    Returns:
        `query`, `vector` and `scale`; `num_keys` and `visible_keys`; `keys`, each with its `vector`, `bias`, `score`,
        `masked`, `weight` and `value`; `others`, the other visible keys as one; `sink`, the logit of a sink.

    Raises:
        UnsupportedError: The matrix has weights only, or the row contains NaN.
    """
    weights = _weights(matrix, query)
    strongest = weights.topk(min(NUM_STRONGEST, len(weights))).indices.tolist()
    listed = sorted({key, *(one for one in strongest if weights[one] > 0)})
    terms = [matrix.weight_terms(query, one) for one in listed]
    if any(math.isnan(one.score) for one in terms):
        raise UnsupportedError("this head has scores that are not numbers (NaN); check the model and the recording")
    visible = int(matrix.bins([query, query + 1], [0, len(weights)]).visible_cells)
    others, first = weights.index_fill(0, torch.tensor(listed), 0.0), terms[0]
    return {
        "query": query,
        "vector": first.query.tolist(),
        "scale": first.scale,
        "num_keys": len(weights),
        "visible_keys": visible,
        "keys": [
            {
                "position": position,
                "vector": one.key.tolist(),
                "bias": finite_or_none(one.score - one.scale * float(one.products.sum())) if one.is_modified else None,
                "score": finite_or_none(one.score),
                "masked": one.is_masked,
                "weight": float(weights[position]),
                "value": None if values is None else values[position].double().tolist(),
            }
            for position, one in zip(listed, terms, strict=True)
        ],
        "others": {
            "count": visible - sum(not one.is_masked for one in terms),
            "score": _score_of(float(others.sum()), weights[listed], terms),
            "value": None if values is None else (_weighted_sum(others, values) / (others.sum() or 1)).tolist(),
        },
        "sink": first.sink,
    }


def head_output(matrix: AttentionMatrix, query: int, values: Tensor) -> Tensor:
    """Return the output of a head at a query, (dim,), from its values, (keys, dim)."""
    return _weighted_sum(_weights(matrix, query), values)


def _weights(matrix: AttentionMatrix, query: int) -> Tensor:
    """The weights of a query on all keys, float64."""
    weights = matrix[query].cpu().double()
    if weights.isnan().any():
        raise UnsupportedError("this query has weights that are not numbers (NaN); check the model and the recording")
    return weights


def _score_of(share: float, weights: Tensor, terms: Sequence[WeightTerms]) -> float | None:
    """The score that gives the other keys this weight, compared with the strongest of these; None for a weight of 0."""
    if share <= 0:
        return None
    strongest = int(weights.argmax())
    return terms[strongest].score + math.log(share / float(weights[strongest]))


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """The sum of values times their weights, in float64; a key without weight adds nothing, whatever its value."""
    used = weights.nonzero()[:, 0]
    total = torch.zeros(values.shape[-1], dtype=torch.float64)
    for some in used.split(CHUNK_SIZE):
        total += weights[some] @ values[some.to(values.device)].cpu().double()
    return total
