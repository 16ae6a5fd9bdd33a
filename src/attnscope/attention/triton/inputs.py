"""What the kernels are passed and what they return, without importing triton."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from attnscope.attention.intervals import Intervals
from attnscope.attention.triton.configs import Config
from attnscope.attention.triton.score_terms import ScoreTerms


class KernelInputs(NamedTuple):
    """The attention of query (batch, heads, queries, dim) and key (batch, key heads, keys, dim)."""

    query: Tensor
    key: Tensor
    intervals: Intervals
    terms: ScoreTerms
    config: Config | None = None  #: instead of that of the device
    precision: str = "ieee"  #: how fp32 is multiplied with that configuration


class RowStatistics(NamedTuple):
    """Statistics of each query, fp32 of shape (batch, heads, queries); 0 for rows without keys unless noted."""

    lse: Tensor  #: log-sum-exp with sinks, -inf for rows without keys
    lse_base2: Tensor  #: the same times log2(e), for the column pass
    entropy: Tensor  #: -sum of w log w, in nats
    largest_weight: Tensor
    largest_logit: Tensor  #: the score of the largest weight, -inf for rows without keys
    squares: Tensor  #: sum of squared weights
    distance: Tensor  #: mean of query position - key position, with the queries as the last of the keys
    abs_distance: Tensor  #: mean absolute distance
    mass: Tensor  #: sum of weights, 1 unless a sink takes a part
    chosen_mass: Tensor | None  #: weight on the chosen keys
    candidates: Tensor | None  #: for `largest_keys`, if asked

    @staticmethod
    def from_planes(planes: Tensor, candidates: Tensor) -> RowStatistics:
        """Name the planes (9 or 10, batch, heads, queries) that the kernel writes."""
        found = planes.unbind(0)
        chosen_mass = found[9] if len(found) > 9 else None
        return RowStatistics._make((*found[:9], chosen_mass, candidates if candidates.numel() else None))


class NeighbourWeights(NamedTuple):
    """Weights on keys at fixed places, fp32 of shape (batch, heads, queries)."""

    local_weight: Tensor  #: on positions at most `reach` away
    self_weight: Tensor  #: on the position of the query
    previous_weight: Tensor  #: on the position before it
    first_weight: Tensor  #: on key 0
