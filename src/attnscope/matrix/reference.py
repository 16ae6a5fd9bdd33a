"""Dense reference of every operation of AttentionMatrix, for the tests.

In: weights (..., queries, keys) and the boolean mask. It imports nothing from the package. Memory: O(n^2).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def entropy(weights: Tensor) -> Tensor:
    """-sum p log p of each row."""
    return -torch.special.xlogy(weights, weights).sum(-1)


def renyi_entropy(weights: Tensor, order: float) -> Tensor:
    """log(sum p^order) / (1 - order) of each row, 0 for empty rows."""
    total = weights.pow(order).sum(-1)
    return torch.where(total > 0, total.log() / (1 - order), 0.0)


def effective_keys(weights: Tensor) -> Tensor:
    """1 / sum p^2 of each row, 0 for empty rows."""
    total = weights.square().sum(-1)
    return torch.where(total > 0, 1 / total, 0.0)


def received(weights: Tensor) -> Tensor:
    """The sum of each column."""
    return weights.sum(-2)


def distance(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of query position - key position, 0 for empty rows."""
    away = _distances(weights)
    share = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    mean = (share * away).sum(-1)
    return mean, (share * (away - mean[..., None]).square()).sum(-1).sqrt()


def mean_abs_distance(weights: Tensor) -> Tensor:
    """The mean absolute distance to the keys, 0 for empty rows."""
    away = _distances(weights).abs()
    return (weights * away).sum(-1) / weights.sum(-1).clamp(min=torch.finfo(weights.dtype).tiny)


def local_weight(weights: Tensor, width: int) -> Tensor:
    """The weight on positions at most `width` away, on either side."""
    return (weights * (_distances(weights).abs() <= width)).sum(-1)


def matched_weight(weights: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """The weight of each row on keys with the id of its query; ids are (batch, queries) and (batch, keys)."""
    return (weights * (queries[:, None, :, None] == keys[:, None, None, :])).sum(-1)


def _distances(weights: Tensor) -> Tensor:
    queries, keys = weights.shape[-2:]
    return (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).to(weights)


def band(weights: Tensor, width: int) -> Tensor:
    """The weights on the last `width` keys up to the position of the query."""
    queries, keys = weights.shape[-2:]
    columns = torch.arange(queries)[:, None] + keys - queries - width + 1 + torch.arange(width)
    inside = (columns >= 0) & (columns < keys)
    rows = torch.arange(queries)[:, None].expand_as(columns)
    return weights[..., rows, columns.clamp(0, keys - 1)] * inside


def pool(weights: Tensor, allowed: Tensor, rows: list[int], columns: list[int], reduction: str) -> Tensor:
    """Bins with these edges: mean over allowed cells, mass, or maximum."""
    picture = []
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            block, seen = weights[..., top:bottom, left:right], allowed[..., top:bottom, left:right]
            if reduction == "max":
                picture.append(block.amax((-1, -2)))
            elif reduction == "density":
                picture.append(block.sum((-1, -2)) / seen.sum((-1, -2)).clamp(min=1))
            else:
                seeing = allowed[..., top:bottom, :].any(-1).sum(-1).clamp(min=1)
                picture.append(block.sum((-1, -2)) / seeing)
    return torch.stack(picture, -1).unflatten(-1, (len(rows) - 1, len(columns) - 1))


def merge_tokens(weights: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    """Mean over the queries of a word, sum over its keys."""
    rows = torch.stack([weights[..., start:stop, :].mean(-2) for start, stop in spans], -2)
    return torch.stack([rows[..., start:stop].sum(-1) for start, stop in spans], -1)
