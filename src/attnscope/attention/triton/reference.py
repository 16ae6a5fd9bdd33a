"""Dense reference of every kernel, in fp64 unless another dtype is given, for the tests. Memory: O(n^2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from attnscope.attention.triton.score_terms import ScoreTerms


def dense_scores(
    query: Tensor, key: Tensor, allowed: Tensor, terms: ScoreTerms, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Scores (batch, heads, queries, keys), -inf where `allowed` (batch or 1, 1, queries, keys) is False."""
    group = query.shape[1] // key.shape[1]
    scores = terms.scale * query.to(dtype) @ key.to(dtype).repeat_interleave(group, 1).mT
    if terms.cap is not None:
        scores = terms.cap * scores.tanh()
    if terms.slopes is not None:
        rows = torch.arange(query.shape[2])[:, None] + terms.slope_offset
        scores = scores - terms.slopes.to(dtype)[:, None, None] * (rows - torch.arange(key.shape[2])).abs()
    return scores.masked_fill(~allowed, -math.inf)


def dense_lse(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The log-sum-exp of each row with its sink, -inf for rows without keys."""
    lse = scores.logsumexp(-1)
    return lse if sinks is None else torch.logaddexp(lse, sinks.to(lse)[:, None]).where(lse > -math.inf, lse)


def dense_weights(scores: Tensor, lse: Tensor) -> Tensor:
    """The attention weights, 0 for rows without keys."""
    return (scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None]).exp()


def row_statistics(scores: Tensor, lse: Tensor, chosen: Tensor | None = None) -> dict[str, Tensor]:
    """The fields of `launch.RowStatistics`."""
    weights = dense_weights(scores, lse)
    mass = weights.sum(-1)
    share = weights / mass.masked_fill(mass == 0, 1.0)[..., None]
    away = _distances(weights)
    found = {
        "lse": lse,
        "lse_base2": lse * math.log2(math.e),
        "entropy": -torch.special.xlogy(weights, weights).sum(-1),
        "largest_weight": weights.amax(-1),
        "largest_logit": scores.amax(-1),
        "squares": weights.square().sum(-1),
        "distance": (share * away).sum(-1),
        "abs_distance": (share * away.abs()).sum(-1),
        "mass": mass,
    }
    return found if chosen is None else found | {"chosen_mass": (weights * chosen[:, None, None]).sum(-1)}


def neighbour_weights(weights: Tensor, reach: int) -> dict[str, Tensor]:
    """The fields of `launch.NeighbourWeights`."""
    away = _distances(weights)
    near = {"local_weight": away.abs() <= reach, "self_weight": away == 0, "previous_weight": away == 1}
    found = {name: (weights * where).sum(-1) for name, where in near.items()}
    return found | {"first_weight": weights[..., 0]}


def bins(weights: Tensor, row_edges: Sequence[int], column_edges: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Sum and maximum of each bin, 0 for empty bins."""
    sums = torch.zeros(*weights.shape[:2], len(row_edges) - 1, len(column_edges) - 1, dtype=weights.dtype)
    largest = torch.zeros_like(sums)
    for r, (top, bottom) in enumerate(pairwise(row_edges)):
        for c, (left, right) in enumerate(pairwise(column_edges)):
            if top < bottom and left < right:
                part = weights[..., top:bottom, left:right]
                sums[..., r, c], largest[..., r, c] = part.sum((-1, -2)), part.amax((-1, -2))
    return sums, largest


def _distances(weights: Tensor) -> Tensor:
    queries, keys = weights.shape[-2:]
    return (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).to(weights)
