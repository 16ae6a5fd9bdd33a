"""Row and column statistics in O(n) memory.

There are two code paths. The fused path reads a statistic off one or two attention calls: a row statistic is attention
with other values, a column statistic is attention with queries and keys swapped. The streaming path reduces blocks of
weights; it works for every score and for dense weights. Out: (batch, heads, rows or columns).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.matrix.blocks import Block, Weights, reduce_blocks
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.reducers import RowSums, block_entropy
from attnscope.matrix.schedule import Schedule


class Distance(NamedTuple):
    """Query position minus key position under the weights of each row, in tokens."""

    mean: Tensor  #: mean distance of each row, (..., queries)
    std: Tensor  #: standard deviation of the distance, (..., queries)


class TopKeys(NamedTuple):
    """The largest weights of each row and their keys, largest first."""

    weights: Tensor  #: (..., queries, count), 0 where a row has fewer visible keys
    keys: Tensor  #: (..., queries, count), -1 where a row has fewer visible keys


def ensure_lse(source: Weights, schedule: Schedule) -> None:
    """Compute and cache the lse of all rows."""
    if isinstance(source, LazyWeights):
        source.lse(schedule)


def entropy(source: Weights, schedule: Schedule, *, exact: bool) -> Tensor:
    """The Shannon entropy of each row in nats.

    The fused path subtracts two numbers as large as lse, with a rounding error of about eps times that.
    """
    if isinstance(source, LazyWeights) and source.fused and not exact:
        pieces = [_fused_entropy(source, step) for step in schedule.track(source.row_steps(schedule))]
        source.cached_lse = torch.cat([lse for _, lse in pieces], 2) if source.cached_lse is None else source.cached_lse
        return torch.cat([found for found, _ in pieces], 2)
    reducer = RowSums(source, source.sizes.queries, block_entropy)
    reduce_blocks(source, [reducer], schedule)
    return reducer.result


def _fused_entropy(source: LazyWeights, rows: range) -> tuple[Tensor, Tensor]:
    """Mass * lse - E[score], where E[score] = scale * query . (weights @ key)."""
    mean_key, lse = source.row_products(rows, None)
    query = source.query[:, :, rows.start : rows.stop].to(source.dtype)
    expected = source.spec.scale * (query * mean_key).sum(-1)
    finite = _finite(lse)
    mass = torch.ones_like(lse) if source.spec.sinks is None else _mass(source, lse)
    return (mass * finite - expected).clamp(min=0.0).masked_fill(lse == -math.inf, 0.0), lse


def _mass(source: LazyWeights, lse: Tensor) -> Tensor:
    """The mass that the sinks leave to each row: 1 - exp(sink - lse)."""
    assert source.spec.sinks is not None
    return -torch.expm1(source.spec.sinks.logits.to(lse)[:, None] - _finite(lse))


def log_power_sum(source: Weights, schedule: Schedule, order: float) -> Tensor:
    """The logarithm of the sum of weights^order of each row; -inf for rows without keys."""
    if isinstance(source, LazyWeights):
        first, second = schedule.split(2)
        lse = source.lse(first)
        sharp = source.scale_scores(order).lse(second)
        return (sharp - order * _finite(lse)).masked_fill(lse == -math.inf, -math.inf)
    reducer = RowSums(source, source.sizes.queries, lambda block: block.weights.pow(order).sum(-1))
    reduce_blocks(source, [reducer], schedule)
    return reducer.result.log()


def received(source: Weights, schedule: Schedule) -> Tensor:
    """The column sums, (batch, heads, keys)."""
    if isinstance(source, LazyWeights) and source.fused:
        return source.transposed_products(None, schedule)[1].exp()
    ones = torch.ones(*source.sizes[:3], 1, dtype=source.dtype, device=source.device)
    return transposed_matmul(source, ones, schedule)[..., 0]


def matmul(source: Weights, values: Tensor, schedule: Schedule) -> Tensor:
    """Weights @ values, with values (batch, heads or key heads, keys, columns), as many at a time as a head is wide."""
    if isinstance(source, DenseWeights):
        return source.products(values, schedule)
    groups = values.split(source.query.shape[-1], dim=-1)
    parts = schedule.split(len(groups))
    return torch.cat([source.products(group, part) for group, part in zip(groups, parts, strict=True)], -1)


def transposed_matmul(source: Weights, values: Tensor, schedule: Schedule) -> Tensor:
    """Weights^T @ values, with values (batch, heads, queries, columns)."""
    if isinstance(source, LazyWeights) and source.fused:
        groups = values.split(source.query.shape[-1], dim=-1)
        parts = schedule.split(len(groups))
        return torch.cat(
            [source.transposed_products(group, part)[0] for group, part in zip(groups, parts, strict=True)], -1
        )
    reducer = _TransposedProduct(source, values)
    reduce_blocks(source, [reducer], schedule)
    return reducer.result


class _TransposedProduct:
    """Weights^T @ values."""

    def __init__(self, source: Weights, values: Tensor) -> None:
        batch, heads, _, keys = source.sizes
        self.values = values
        self.result = torch.zeros(batch, heads, keys, values.shape[-1], dtype=source.dtype, device=source.device)

    def add(self, block: Block) -> None:
        """Add a block."""
        values = self.values[block.batch, block.heads, block.rows]
        self.result[block.batch, block.heads, block.columns].add_(block.weights.mT @ values)


def distance(source: Weights, schedule: Schedule, offset: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of query position - key position of each row; 0 and 0 for rows without keys."""
    reducer = _DistanceMoments(source, offset)
    reduce_blocks(source, [reducer], schedule)
    return reducer.mean, (reducer.squares / reducer.mass.masked_fill(reducer.mass == 0, 1.0)).sqrt()


class _DistanceMoments:
    """Mass, mean and squared deviations of the distance, merged by block: plain sums would lose digits in fp32."""

    def __init__(self, source: Weights, offset: int) -> None:
        self.offset = offset
        self.mass, self.mean, self.squares = (
            torch.zeros(source.sizes[:3], dtype=source.dtype, device=source.device) for _ in range(3)
        )

    def add(self, block: Block) -> None:
        """Add a block."""
        weights, where = block.weights, (block.batch, block.heads, block.rows)
        keys = torch.arange(block.columns.start, block.columns.stop, device=weights.device)
        distances = (block.positions.tensor[:, None] + self.offset - keys).to(weights.dtype)
        mass = weights.sum(-1)
        mean = (weights * distances).sum(-1) / mass.masked_fill(mass == 0, 1.0)
        squares = (weights * (distances - mean[..., None]).square()).sum(-1)
        before, total = self.mass[where], self.mass[where] + mass
        share = mass / total.masked_fill(total == 0, 1.0)
        shift = torch.where(mass > 0, mean - self.mean[where], 0.0)
        self.squares[where].add_(squares + shift.square() * before * share)
        self.mean[where].add_(shift * share)
        self.mass[where] = total


def topk(source: Weights, count: int, schedule: Schedule) -> tuple[Tensor, Tensor]:
    """The largest weights of each row and their columns, (batch, heads, queries, count); 0 and -1 past the last."""
    if not 1 <= count <= source.sizes.keys:
        raise ValueError(f"topk: expected a count in 1 ... {source.sizes.keys}, got {count}")
    reducer = _LargestWeights(source, count)
    reduce_blocks(source, [reducer], schedule)
    return reducer.weights.clamp(min=0.0), reducer.keys.masked_fill(reducer.weights < 0, -1)


class _LargestWeights:
    """The largest weights of each row and their columns; -1 for masked cells."""

    def __init__(self, source: Weights, count: int) -> None:
        shape = (*source.sizes[:3], count)
        self.weights = torch.full(shape, -1.0, dtype=source.dtype, device=source.device)
        self.keys = torch.full(shape, -1, device=source.device)

    def add(self, block: Block) -> None:
        """Add a block."""
        where, weights = (block.batch, block.heads, block.rows), block.weights
        weights = weights if block.visible is None else weights.masked_fill(~block.visible, -1.0)
        count = self.weights.shape[-1]
        best, at = weights.topk(min(count, weights.shape[-1]), dim=-1)
        best = torch.cat([self.weights[where], best], -1)
        keys = torch.cat([self.keys[where], at + block.columns.start], -1)
        self.weights[where], at = best.topk(count, dim=-1)
        self.keys[where] = keys.gather(-1, at)


def _finite(logarithms: Tensor) -> Tensor:
    return logarithms.masked_fill(logarithms == -math.inf, 0.0)
