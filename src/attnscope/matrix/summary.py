"""All statistics of all rows and columns from one blockwise pass in which each score is computed once.

In: weights. Out: (batch, heads, ...) in fp32, or fp64 for fp64. Memory: the results and two blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.matrix.blocks import Block, Weights, reduce_blocks
from attnscope.matrix.kernel_passes import KernelPasses
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.pairings import MatchedWeights, Pairing, check_pairings
from attnscope.matrix.reducers import BinAxis, BinSums
from attnscope.matrix.schedule import Schedule
from attnscope.matrix.visible_cells import count_visible, count_visible_queries

LOCAL_DISTANCE = 8  # tokens on either side that count as local


class Summary(NamedTuple):
    """Result of `AttentionMatrix.summary`. Rows without keys have 0 everywhere."""

    entropy: Tensor  #: Shannon entropy of each row in nats, (..., queries)
    effective_keys: Tensor  #: 1 / sum of weights^2 of each row, (..., queries)
    received: Tensor  #: column sums: the attention that each key receives, (..., keys)
    mean_distance: Tensor  #: mean of query position - key position of each row, (..., queries)
    mass: Tensor  #: row sums: 1 unless a sink takes a part, (..., queries)
    mean_abs_distance: Tensor  #: mean absolute distance of query and key of each row, (..., queries)
    local_weight: Tensor  #: weight on positions at most LOCAL_DISTANCE away, (..., queries)
    self_weight: Tensor  #: weight on the position of the query, 0 without such a key, (..., queries)
    previous_weight: Tensor  #: weight on the position before the query, (..., queries)
    first_weight: Tensor  #: weight on key 0, (..., queries)
    visible_keys: Tensor  #: number of keys that the mask allows each query, (..., queries)
    visible_queries: Tensor  #: number of queries that the mask allows each key, (..., keys)
    matched_weight: Tensor  #: weight on keys with the id of the query, (..., pairings, queries)
    num_matches: Tensor  #: number of such keys that the mask allows, (..., pairings, queries)
    bin_sums: Tensor  #: sum of the weights of each bin, (..., rows, columns)
    visible_cells: Tensor  #: number of cells that the mask allows in each bin, (..., rows, columns)

    @property
    def density(self) -> Tensor:
        """The mean weight of the allowed cells of each bin, as by `pool`, (..., rows, columns)."""
        return self.bin_sums / self.visible_cells.clamp(min=1)


ADDED = ("received", "visible_queries", "bin_sums", "visible_cells")
"""Fields with a number for each key or bin, to which all rows add; the others have one for each row."""


def concat_rows(parts: Sequence[Summary], keys: int) -> Summary:
    """Concatenate the summaries of consecutive rows over the same bins; earlier parts may have fewer keys."""
    found = {}
    for name in Summary._fields:
        each = [getattr(part, name) for part in parts]
        heads = each[0].shape[1]
        if all(one.stride(1) == 0 for one in each):  # expanded over heads: stored once
            each = [one[:, :1] for one in each]
        if name in ("received", "visible_queries"):
            each = [functional.pad(one, (0, keys - one.shape[-1])) for one in each]
        together = torch.stack(each).sum(0) if name in ADDED else torch.cat(each, -1)
        found[name] = together.expand(-1, heads, *together.shape[2:])
    return Summary(**found)


def summarize(
    source: Weights,
    row_edges: Sequence[int],
    column_edges: Sequence[int],
    schedule: Schedule,
    pairings: Sequence[Pairing] = (),
) -> Summary:
    """All statistics, with bins given by their edges; equal edges make an empty bin, which has 0."""
    queries, keys = source.sizes[2:]
    down, across = BinAxis(row_edges), BinAxis(column_edges)
    *counting, last = schedule.split(4)
    visible_cells = count_visible(source, row_edges, column_edges, counting[0])
    visible_keys = count_visible(source, range(queries + 1), [0, keys], counting[1]).squeeze(-1)
    visible_queries = count_visible_queries(source, counting[2])
    ids = check_pairings(source, pairings)
    if source.passes is not None:
        found = _statistics_by_kernels(source.passes, row_edges, column_edges, ids, last)
        counts = {"visible_cells": visible_cells, "visible_keys": visible_keys, "visible_queries": visible_queries}
        return Summary(**found, **counts)
    bins, rows, matched = BinSums(source, down, across), _RowStatistics(source), MatchedWeights(source, ids)
    # The square of the smallest weight that counts is the smallest normal number.
    least = math.log(torch.finfo(source.dtype).tiny) / 2
    align = down.align, across.align
    reduce_blocks(source, [bins, matched, rows], last, align=align, min_log_weight=least)
    if isinstance(source, LazyWeights):
        rows.entropy.clamp_(min=0.0)  # a weight of 1 may be rounded to a little more
    mass = rows.mass.masked_fill(rows.mass == 0, 1.0)
    return Summary(
        entropy=rows.entropy,
        effective_keys=rows.squares.reciprocal().masked_fill_(rows.squares == 0, 0.0),
        received=bins.column_sums,
        mean_distance=rows.distance / mass,
        mass=rows.mass,
        mean_abs_distance=rows.abs_distance / mass,
        local_weight=rows.local_weight,
        self_weight=rows.self_weight,
        previous_weight=rows.previous_weight,
        first_weight=rows.first_weight,
        visible_keys=visible_keys,
        visible_queries=visible_queries,
        matched_weight=matched.weights,
        num_matches=matched.counts,
        bin_sums=bins.result,
        visible_cells=visible_cells,
    )


def _statistics_by_kernels(
    passes: KernelPasses,
    row_edges: Sequence[int],
    column_edges: Sequence[int],
    ids: Sequence[Pairing],
    schedule: Schedule,
) -> dict[str, Tensor]:
    """The fields of `Summary` that the kernels compute."""
    first, second, third, fourth = schedule.split(4)
    rows = passes.rows(first)
    if ids:
        query_ids, key_ids = zip(*ids, strict=True)
        matched, num_matches = passes.matches(rows.lse_base2, query_ids, key_ids, second)
    else:
        matched = rows.lse[:, :, None][:, :, :0]
        num_matches = matched.new_empty(matched.shape, dtype=torch.long)
    received, bin_sums = passes.columns_and_bins(row_edges, column_edges, rows.lse_base2, third)
    return {
        "entropy": rows.entropy,
        "effective_keys": rows.squares.reciprocal().masked_fill_(rows.squares == 0, 0.0),
        "received": received,
        "mean_distance": rows.distance,
        "mass": rows.mass,
        "mean_abs_distance": rows.abs_distance,
        **passes.neighbours(rows.lse_base2, LOCAL_DISTANCE, fourth)._asdict(),
        "matched_weight": matched,
        "num_matches": num_matches,
        "bin_sums": bin_sums,
    }


class _RowStatistics:
    """Sums over the keys of each row, (batch, heads, queries)."""

    def __init__(self, source: Weights) -> None:
        batch, heads, queries, keys = source.sizes
        self.offset = keys - queries
        self.totals = torch.zeros(9, batch, heads, queries, dtype=source.dtype, device=source.device)
        self.entropy, self.squares, self.mass, self.distance, self.abs_distance = self.totals[:5]
        self.local_weight, self.self_weight, self.previous_weight, self.first_weight = self.totals[5:]
        self.ramp = torch.arange(keys, dtype=source.dtype, device=source.device)

    def add(self, block: Block) -> None:
        """Add a block; its logarithms are overwritten."""
        totals = _Totals(*self.totals[:, block.batch, block.heads, block.rows])
        weights, logs, left = block.weights, block.log_weights, block.columns.start
        norm, mass = torch.linalg.vector_norm(weights, dim=-1), weights.sum(-1)
        totals.squares.addcmul_(norm, norm)
        totals.mass.add_(mass)
        totals.entropy.sub_(logs.mul_(weights).sum(-1))
        first = block.rows.start + self.offset
        _add_distances(totals, weights, mass, first, left, self.ramp, spare=logs)
        _copy_diagonal(totals.self_weight, weights, first - left)
        _copy_diagonal(totals.previous_weight, weights, first - left - 1)
        if left == 0:
            totals.first_weight.copy_(weights[..., 0])


class _Totals(NamedTuple):
    """The sums of the rows of a block."""

    entropy: Tensor
    squares: Tensor
    mass: Tensor
    distance: Tensor
    abs_distance: Tensor
    local_weight: Tensor
    self_weight: Tensor
    previous_weight: Tensor
    first_weight: Tensor


def _add_distances(
    totals: _Totals, weights: Tensor, mass: Tensor, first: int, left: int, ramp: Tensor, spare: Tensor
) -> None:
    """Add weight * distance in two parts: from the row to the near edge of the block, and from there to the key.

    Off the diagonal both parts have one sign. Across it they would cancel, so distances are computed cell by cell.
    """
    high, wide = weights.shape[-2:]
    positions, ramp = torch.arange(first, first + high, dtype=mass.dtype, device=mass.device), ramp[:wide]
    last = left + wide - 1
    if last <= first:
        inner = torch.mv(weights.view(-1, wide), ramp.flip(0)).view_as(mass)
        distance = inner.addcmul_(mass, positions - last)
        totals.distance.add_(distance)
        totals.abs_distance.add_(distance)
    elif left >= first + high - 1:
        inner = torch.mv(weights.view(-1, wide), ramp).view_as(mass)
        distance = inner.addcmul_(mass, left - positions)
        totals.distance.sub_(distance)
        totals.abs_distance.add_(distance)
    else:
        distances = positions[:, None] - left - ramp
        totals.distance.add_(torch.mul(weights, distances, out=spare).sum(-1))
        totals.abs_distance.add_(torch.mul(weights, distances.abs(), out=spare).sum(-1))
    if last >= first - LOCAL_DISTANCE and left <= first + high - 1 + LOCAL_DISTANCE:
        distances = positions[:, None] - left - ramp
        totals.local_weight.add_(torch.mul(weights, distances.abs() <= LOCAL_DISTANCE, out=spare).sum(-1))


def _copy_diagonal(target: Tensor, weights: Tensor, offset: int) -> None:
    """Copy the weights of cells with column - row = offset in the block, if there are any, to their rows."""
    high, wide = weights.shape[-2:]
    if -high < offset < wide:
        found = weights.diagonal(offset, -2, -1)
        start = max(0, -offset)
        target[..., start : start + found.shape[-1]] = found
