"""How a weight was computed, as numbers for the page: q.k, scale, bias, mask, softmax, and rotary frequencies.

In: the matrix of one head, (queries, keys), and a cell. Out: JSON; infinite numbers are null.
Does not know: servers, models. Memory: the terms of one weight.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.rotary import Rotary
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix


def weight_report(
    matrix: AttentionMatrix, query: int, key: int, *, rotary: Rotary | None = None, value: Tensor | None = None
) -> dict[str, Any]:
    """Report the terms of a weight.

    Args:
        matrix: The matrix of one head.
        query: The position of the query.
        key: The position of the key.
        rotary: How queries and keys were rotated, if that is known.
        value: The value vector of the key, (dim,), if it was recorded.

    Returns:
        The terms; `weight` is exp(`score` - `log_sum_exp`), or 0 where masked.

    Raises:
        UnsupportedError: The matrix has weights only, or its query or key contains NaN.
    """
    terms = matrix.weight_terms(query, key)
    if math.isnan(terms.score) or math.isnan(terms.lse):
        raise UnsupportedError("this head has weights that are not numbers (NaN); check the model and the recording")
    dot = float(terms.products.sum())
    return {
        "query": query,
        "key": key,
        "weight": terms.weight,
        "dot": dot,
        "scale": terms.scale,
        "score": finite_or_none(terms.score),
        "bias": finite_or_none(terms.score - terms.scale * dot) if terms.is_modified else None,
        "masked": terms.is_masked,
        "log_sum_exp": finite_or_none(terms.lse),
        "products": terms.products.tolist(),
        "frequencies": None if rotary is None else rotary_pairs(terms.products, rotary),
        "value_norm": None if value is None else float(torch.linalg.vector_norm(value.double())),
    }


def rotary_pairs(products: Tensor, rotary: Rotary) -> list[dict[str, Any]] | None:
    """Sum the products of each pair of dimensions that rotate together, the fastest first; None if they do not fit.

    >>> rotary_pairs(torch.tensor([1.0, 2, 3, 4]), Rotary(dim=4, layout="half"))[0]
    {'dims': [0, 2], 'period': 6.283185307179586, 'product': 4.0}
    """
    if len(products) < rotary.dim:
        return None
    count = rotary.dim // 2
    pairs = [(at, at + count) if rotary.layout == "half" else (2 * at, 2 * at + 1) for at in range(count)]
    turns = rotary.frequencies().tolist()
    return [
        {"dims": [*pair], "period": math.tau / turn, "product": float(products[list(pair)].sum())}
        for pair, turn in zip(pairs, turns, strict=True)
    ]


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
