"""Numbers for each row or each column of a matrix of weights, in O(n) memory.

Two roads lead to each. The fused one reads it off one or two attention calls: a row statistic is attention with other
values, a column statistic is attention with queries and keys swapped. The streaming one walks over blocks of weights;
it serves every score and also matrices that are held. In: a source of weights. Out: (batch, heads, rows or columns).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.schedule import Schedule, ranges

Weights = LazyWeights | DenseWeights
BLOCK_CELLS = 2**21  # weights of one block, all heads together
BLOCK_COLUMNS = 2048


class Block(NamedTuple):
    """Some weights as logarithms, (batch, heads, rows, columns), and where they stand."""

    rows: Tensor
    columns: Tensor
    log_weights: Tensor

    @property
    def weights(self) -> Tensor:
        """The weights themselves."""
        return self.log_weights.exp()


def row_blocks(source: Weights, schedule: Schedule) -> Iterator[Iterator[Block]]:
    """Rows in steps; for each, an iterator over the blocks of columns that hold an allowed cell."""
    batch, heads, queries, keys = source.sizes
    wide = min(BLOCK_COLUMNS, max(keys, 1))
    high = max(1, min(BLOCK_CELLS, schedule.max_bytes // 32) // max(wide * batch * heads, 1))
    for step in schedule.track(ranges(queries, high)):
        yield _blocks(source, step, wide)


def _blocks(source: Weights, rows: range, wide: int) -> Iterator[Block]:
    here = torch.arange(rows.start, rows.stop, device=source.device)
    first, last = source.column_range(here)
    for left in range(first, last, wide):
        columns = torch.arange(left, min(left + wide, last), device=source.device)
        yield Block(here, columns, source.log_weights(here, columns))


def ensure_lse(source: Weights, schedule: Schedule) -> None:
    """Have the normalisers of all rows at hand, so that blocks do not compute their own again and again."""
    if isinstance(source, LazyWeights):
        source.lse(schedule)


def entropy(source: Weights, schedule: Schedule, *, exact: bool) -> Tensor:
    """The Shannon entropy of each row in nats, summed over its keys.

    The fused road takes the difference of two numbers of the size of lse, and is off by about eps times that.
    """
    if isinstance(source, LazyWeights) and source.fused and not exact:
        pieces = [_fused_entropy(source, step) for step in schedule.track(source.row_steps(schedule))]
        source.cached_lse = torch.cat([lse for _, lse in pieces], 2) if source.cached_lse is None else source.cached_lse
        return torch.cat([found for found, _ in pieces], 2)
    first, second = schedule.split(2)
    ensure_lse(source, first)
    return _summed(source, second, lambda block: -(block.weights * _finite(block.log_weights)).sum(-1))


def _fused_entropy(source: LazyWeights, rows: range) -> tuple[Tensor, Tensor]:
    """Mass * lse - E[score], where E[score] = scale * query . (weights @ key)."""
    mean_key, lse = source.row_products(rows, None)
    query = source.query[:, :, rows.start : rows.stop].to(source.dtype)
    expected = source.rule.scale * (query * mean_key).sum(-1)
    finite = _finite(lse)
    mass = torch.ones_like(lse) if source.rule.sinks is None else _mass(source, lse)
    return (mass * finite - expected).clamp(min=0.0).masked_fill(lse == -math.inf, 0.0), lse


def _mass(source: LazyWeights, lse: Tensor) -> Tensor:
    """What the sinks have left of each row: 1 - exp(sink - lse)."""
    assert source.rule.sinks is not None
    return -torch.expm1(source.rule.sinks.logits.to(lse)[:, None] - _finite(lse))


def log_power_sum(source: Weights, schedule: Schedule, order: float) -> Tensor:
    """The logarithm of the sum of weights to a power, for each row; -inf for rows without keys."""
    first, second = schedule.split(2)
    if isinstance(source, LazyWeights):
        lse = source.lse(first)
        sharp = source.scale_scores(order).lse(second)
        return (sharp - order * _finite(lse)).masked_fill(lse == -math.inf, -math.inf)
    return _summed(source, second, lambda block: (order * block.log_weights).exp().sum(-1)).log()


def received(source: Weights, schedule: Schedule) -> Tensor:
    """What each key receives from all queries together, (batch, heads, keys)."""
    if isinstance(source, LazyWeights) and source.fused:
        return source.transposed_products(None, schedule)[1].exp()
    ones = torch.ones(*source.sizes[:3], 1, dtype=source.dtype, device=source.device)
    return transposed_matmul(source, ones, schedule)[..., 0]


def matmul(source: Weights, values: Tensor, schedule: Schedule) -> Tensor:
    """Weights @ values, with values (batch, heads or key heads, keys, columns) in groups as wide as a head."""
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
    first, second = schedule.split(2)
    ensure_lse(source, first)
    batch, heads, _, keys = source.sizes
    total = torch.zeros(batch, heads, keys, values.shape[-1], dtype=source.dtype, device=source.device)
    for blocks in row_blocks(source, second):
        for block in blocks:
            total[:, :, block.columns] += block.weights.mT @ values[:, :, block.rows]
    return total


def distance(source: Weights, schedule: Schedule, offset: int) -> tuple[Tensor, Tensor]:
    """Mean and spread (standard deviation) of query position - key position under each row's weights.

    Each block finds its own mean and squares, which are then joined: sums of large positions would lose their digits in
    fp32. A row without keys has 0 and 0.
    """
    first, second = schedule.split(2)
    ensure_lse(source, first)
    mass, mean, squares = (torch.zeros(source.sizes[:3], dtype=source.dtype, device=source.device) for _ in range(3))
    for blocks in row_blocks(source, second):
        for block in blocks:
            weights, rows = block.weights, block.rows
            away = (rows[:, None] + offset - block.columns[None, :]).to(source.dtype)
            here = weights.sum(-1)
            some = here.masked_fill(here == 0, 1.0)
            centre = (weights * away).sum(-1) / some
            around = (weights * (away - centre[..., None]).square()).sum(-1)
            before, both = mass[:, :, rows], mass[:, :, rows] + here
            share = here / both.masked_fill(both == 0, 1.0)
            shift = torch.where(here > 0, centre - mean[:, :, rows], 0.0)
            squares[:, :, rows] += around + shift.square() * before * share
            mean[:, :, rows] += shift * share
            mass[:, :, rows] = both
    return mean, (squares / mass.masked_fill(mass == 0, 1.0)).sqrt()


def topk(source: Weights, count: int, schedule: Schedule) -> tuple[Tensor, Tensor]:
    """The largest weights of each row and their columns, (batch, heads, queries, count); 0 and -1 past the last."""
    if not 1 <= count <= source.sizes.keys:
        raise ValueError(f"topk: expected a count in 1 ... {source.sizes.keys}, got {count}")
    first, second = schedule.split(2)
    ensure_lse(source, first)
    shape = (*source.sizes[:3], count)
    best = torch.full(shape, -math.inf, dtype=source.dtype, device=source.device)
    where = torch.full(shape, -1, device=source.device)
    for blocks in row_blocks(source, second):
        for block in blocks:
            values, at = block.log_weights.topk(min(count, len(block.columns)), dim=-1)
            values = torch.cat([best[:, :, block.rows], values], -1)
            columns = torch.cat([where[:, :, block.rows], block.columns[at]], -1)
            best[:, :, block.rows], at = values.topk(count, dim=-1)
            where[:, :, block.rows] = columns.gather(-1, at)
    return best.exp(), where.masked_fill(best == -math.inf, -1)


def _summed(source: Weights, schedule: Schedule, statistic) -> Tensor:
    """The sum over blocks of a statistic of each row."""
    total = torch.zeros(source.sizes[:3], dtype=source.dtype, device=source.device)
    for blocks in row_blocks(source, schedule):
        for block in blocks:
            total[:, :, block.rows] += statistic(block)
    return total


def _finite(logarithms: Tensor) -> Tensor:
    return logarithms.masked_fill(logarithms == -math.inf, 0.0)
