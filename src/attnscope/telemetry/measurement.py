"""Attention statistics of each head of one layer, in a form that can be merged over calls and ranks.

In: an attention call. Out: a `Measurement` of tensors (heads, ...) on the device of the call, without waiting for it.
Does not know: models, steps, ranks. Memory: O(n).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.float64 import WITHOUT_FLOAT64
from attnscope.errors import SettingError
from attnscope.matrix.logits import max_of_rows
from attnscope.recording.call import Call

ENTROPY_BIN = 0.1
"""The width of the bins of `entropy_counts` in nats; the last one has no upper end."""
NUM_ENTROPY_BINS = 160


class Place(NamedTuple):
    """Where the largest logit of each head is, (heads,); -1 where the mask allows no cell."""

    rank: Tensor  #: the rank whose batch it is
    sequence: Tensor  #: row of the batch
    query: Tensor  #: position of the query in its sequence
    key: Tensor  #: position of the key


class Maxima(NamedTuple):
    """What is merged by the larger one, (heads,)."""

    logit: Tensor  #: the largest logit
    query_norm: Tensor  #: the largest norm of a query
    key_norm: Tensor  #: the largest norm of a key that the head reads


class Sums(NamedTuple):
    """What is merged by addition, (heads,) or (heads, bins)."""

    rows: Tensor  #: queries that may attend to a key
    entropy: Tensor  #: entropy of these rows
    effective_keys: Tensor  #: 1 / sum of weights^2 of these rows
    first_weight: Tensor  #: weight of these rows on the first key
    not_finite: Tensor  #: queries and keys that contain NaN or infinity
    entropy_counts: Tensor  #: rows by entropy, (heads, NUM_ENTROPY_BINS)


class Measurement(NamedTuple):
    """Statistics of the heads of one layer."""

    maxima: Maxima
    place: Place
    sums: Sums


def measure(call: Call, positions: Tensor | None = None) -> Measurement:
    """Measure all heads of a call.

    Args:
        call: The call.
        positions: The position of each query in its sequence, (queries,); consecutive from `call.row` on if None.
    """
    rows = call.matrix().row_logits()
    counted = rows.max_logit > -math.inf
    largest = max_of_rows(rows.max_logit.transpose(0, 1).flatten(1), rows.max_key.transpose(0, 1).flatten(1))
    queries = rows.max_logit.shape[2]
    found = largest.queries >= 0
    group = call.query.shape[1] // call.key.shape[1]
    query_norm, key_norm = (_norms(tensor) for tensor in (call.query, call.key))  # (heads, batch * positions)
    broken = (~query_norm.isfinite()).sum(-1) + (~key_norm.isfinite()).sum(-1).repeat_interleave(group)

    dtype = torch.float32 if call.query.device.type in WITHOUT_FLOAT64 else torch.float64

    def total(values: Tensor) -> Tensor:
        return values.masked_fill(~counted, 0.0).sum((0, 2), dtype=dtype)

    return Measurement(
        Maxima(
            largest.logits.masked_fill(broken > 0, math.nan),
            query_norm.amax(-1),
            key_norm.amax(-1).repeat_interleave(group),
        ),
        Place(
            torch.zeros_like(largest.queries),
            (largest.queries // max(queries, 1)).where(found, -1),
            _positions(largest.queries % max(queries, 1), call, positions).where(found, -1),
            (largest.keys + call.column).where(found, -1),
        ),
        Sums(
            counted.sum((0, 2)).to(dtype),
            total(rows.entropy),
            total(rows.effective_keys),
            total(rows.first_weight),
            broken.to(dtype),
            _count_entropies(rows.entropy, counted.to(dtype)),
        ),
    )


def merge(first: Measurement, second: Measurement) -> Measurement:
    """The statistics of both together; of equal logits, the place of the first."""
    larger = (second.maxima.logit > first.maxima.logit) | second.maxima.logit.isnan()
    return Measurement(
        Maxima(*map(torch.maximum, first.maxima, second.maxima)),
        Place(*(torch.where(larger, there, here) for here, there in zip(first.place, second.place, strict=True))),
        Sums(*map(torch.add, first.sums, second.sums)),
    )


def _positions(index: Tensor, call: Call, positions: Tensor | None) -> Tensor:
    """The positions of the queries with these indices, (heads,)."""
    if positions is None or not call.query.shape[2]:
        return index + call.row
    if len(positions) != call.query.shape[2]:
        raise SettingError(f"watch: {len(positions)} positions were given for {call.query.shape[2]} queries")
    return positions.to(index)[index]


def _norms(tensor: Tensor) -> Tensor:
    """The norms of (batch, heads, positions, dim) as (heads, batch * positions)."""
    return torch.linalg.vector_norm(tensor.detach(), dim=-1, dtype=torch.float32).transpose(0, 1).flatten(1)


def _count_entropies(entropy: Tensor, counted: Tensor) -> Tensor:
    """The number of rows in each bin of entropy, (heads, NUM_ENTROPY_BINS); `counted` is 1 for rows that count."""
    at = (entropy / ENTROPY_BIN).nan_to_num(NUM_ENTROPY_BINS).long().clamp(0, NUM_ENTROPY_BINS - 1)
    counts = torch.zeros(entropy.shape[1], NUM_ENTROPY_BINS, dtype=counted.dtype, device=entropy.device)
    return counts.scatter_add_(1, at.transpose(0, 1).flatten(1), counted.transpose(0, 1).flatten(1))
