"""A small picture of a huge matrix: its cells gathered into bins of rows and columns.

density is the mean weight of the cells that the mask allows; mass is the sum over the keys of a bin, averaged over its
queries that see a key, so that rows still sum to 1; max is the largest weight. A bin without an allowed cell has 0, and
`visible` tells it from a bin of zeros. Memory: the picture, and one step of rows.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnscope.attention.regions import Region
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.schedule import Schedule, ranges
from attnscope.matrix.statistics import Weights, ensure_lse, row_blocks

CELLS_AT_ONCE = 2**21  # of a mask without structure, which is asked cell by cell
REDUCTIONS = ("density", "mass", "max")


def even_edges(length: int, bins: int) -> list[int]:
    """Edges of so many bins, as equal as whole numbers can be.

    >>> even_edges(10, 4)
    [0, 2, 5, 7, 10]
    """
    if not 1 <= bins <= length:
        raise ValueError(f"pool: expected 1 ... {length} bins for {length} positions, got {bins}")
    return [length * at // bins for at in range(bins + 1)]


def pool(source: Weights, rows: Sequence[int], columns: Sequence[int], how: str, schedule: Schedule) -> Tensor:
    """(batch, heads, row bins, column bins), with bins given by their edges."""
    if how not in REDUCTIONS:
        raise ValueError(f"pool: expected reduction to be one of {', '.join(REDUCTIONS)}, got {how!r}")
    first, second, third = schedule.split(3)
    if how == "max":
        ensure_lse(source, first)
        return largest(source, rows, columns, replace(second, stop=third.stop))
    if how == "mass":
        cells = visible(source, rows, [0, source.sizes.keys], first, count="rows")
    else:
        cells = visible(source, rows, columns, first)
    ensure_lse(source, second)
    return sum_of_bins(source, rows, columns, third) / cells.clamp(min=1)


def sum_of_bins(source: Weights, rows: Sequence[int], columns: Sequence[int], schedule: Schedule) -> Tensor:
    """The sum of the weights in each bin; every cell is scored once."""
    batch, heads, queries, _ = source.sizes
    total = torch.zeros(batch, heads, len(rows) - 1, len(columns) - 1, dtype=source.dtype, device=source.device)
    row_bin = bin_of(rows, queries, source.device)
    if isinstance(source, LazyWeights) and source.fused:
        width = source.query.shape[-1]
        starts = range(0, len(columns) - 1, width)
        for start, part in zip(starts, schedule.split(len(starts)), strict=True):
            some = columns[start : start + width + 1]
            _add_fused(source, total[..., start : start + len(some) - 1], row_bin, some, part)
        return total
    column_bin = bin_of(columns, source.sizes.keys, source.device)
    for blocks in row_blocks(source, schedule):
        for block in blocks:
            low, high = int(column_bin[block.columns[0]]), int(column_bin[block.columns[-1]])
            inside = torch.nn.functional.one_hot(column_bin[block.columns] - low, high - low + 1).to(source.dtype)
            total[..., low : high + 1].index_add_(2, row_bin[block.rows], block.weights @ inside)
    return total


def _add_fused(source: LazyWeights, total: Tensor, row_bin: Tensor, edges: Sequence[int], schedule: Schedule) -> None:
    """Add the sums of some column bins: attention over their columns alone, with the bins' indicators as values.

    Its softmax is over those columns only; exp(their lse - the row's lse) is their share of the row.
    """
    left, right = edges[0], edges[-1]
    at = torch.arange(left, right, device=source.device)
    limits = torch.tensor(edges, device=source.device)
    inside = (at[:, None] >= limits[:-1]) & (at[:, None] < limits[1:])
    values = inside.to(source.dtype).expand(source.sizes.batch, source.rule.num_kv_heads, -1, -1)
    lse = source.lse(schedule)
    for step in schedule.track(source.row_steps(schedule)):
        part, part_lse = source.row_products(step, values, columns=(left, right))
        row_lse = lse[:, :, step.start : step.stop]
        share = (part_lse - row_lse.masked_fill(row_lse == -math.inf, 0.0)).exp()
        total.index_add_(2, row_bin[step.start : step.stop], part * share[..., None])


def largest(source: Weights, rows: Sequence[int], columns: Sequence[int], schedule: Schedule) -> Tensor:
    """The largest weight in each bin."""
    batch, heads, _, _ = source.sizes
    best = torch.full(
        (batch, heads, len(rows) - 1, len(columns) - 1), -math.inf, dtype=source.dtype, device=source.device
    )
    for blocks in row_blocks(source, schedule):
        for block in blocks:
            down, row_bins = _bins_inside(rows, int(block.rows[0]), int(block.rows[-1]) + 1, source.device)
            across, column_bins = _bins_inside(
                columns, int(block.columns[0]), int(block.columns[-1]) + 1, source.device
            )
            found = block.log_weights[..., across].amax(-1)[:, :, down].amax(-2)
            target = best[:, :, row_bins, column_bins]
            torch.maximum(target, found, out=target)
    return best.exp()


def _bins_inside(edges: Sequence[int], start: int, stop: int, device: torch.device) -> tuple[Tensor, slice]:
    """For the bins that [start, stop) meets: (bins, width) indices into it, the last one repeated, and which bins."""
    first = next(at for at in range(len(edges) - 1) if edges[at + 1] > start)
    last = next(at for at in reversed(range(len(edges) - 1)) if edges[at] < stop)
    low = torch.tensor([max(edge, start) - start for edge in edges[first : last + 1]], device=device)
    high = torch.tensor([min(edge, stop) - start for edge in edges[first + 1 : last + 2]], device=device)
    offsets = torch.arange(int((high - low).max()), device=device)
    return torch.minimum(low[:, None] + offsets, high[:, None] - 1), slice(first, last + 1)


def visible(
    source: Weights, rows: Sequence[int], columns: Sequence[int], schedule: Schedule, *, count: str = "cells"
) -> Tensor:
    """How many cells of each bin the mask allows; with count="rows", how many rows of it have any."""
    batch, heads, queries, _ = source.sizes
    if (
        count == "cells"
        and isinstance(source, LazyWeights)
        and source.lowered is not None
        and source.lowered.key_mask is None
    ):
        found = torch.stack([_areas(regions, rows, columns, source.device) for regions in source.lowered.regions])
        return found[:, None].expand(batch, heads, -1, -1)
    total = torch.zeros(batch, heads, len(rows) - 1, len(columns) - 1, dtype=torch.long, device=source.device)
    row_bin = bin_of(rows, queries, source.device)
    edges = torch.tensor(columns, device=source.device)
    high = max(1, min(2**19, schedule.max_bytes // 64) // max(len(columns) * batch, 1))
    for step in schedule.track(ranges(queries, high)):
        here = torch.arange(step.start, step.stop, device=source.device)
        found = allowed_between(source, here, edges)
        if count == "rows":
            found = (found.sum(-1, keepdim=True) > 0).long()
        total.index_add_(2, row_bin[here], found.expand(batch, heads, -1, -1))
    return total


def audience(source: Weights, schedule: Schedule) -> Tensor:
    """How many queries may see each key, (batch, heads, keys)."""
    batch, heads, queries, keys = source.sizes
    edges = range(keys + 1)
    if not isinstance(source, LazyWeights) or source.lowered is None:
        return visible(source, [0, queries], edges, schedule).squeeze(-2)
    found = torch.cat([_areas(regions, [0, queries], edges, source.device) for regions in source.lowered.regions])
    keep = source.lowered.key_mask
    return (found if keep is None else found * keep)[:, None].expand(batch, heads, -1)


def _areas(regions: Sequence[Region], rows: Sequence[int], columns: Sequence[int], device: torch.device) -> Tensor:
    """Cells of disjoint regions in each bin, (row bins, column bins), as sums of clipped diagonals."""
    down, across = torch.tensor(rows, device=device), torch.tensor(columns, device=device)
    total = torch.zeros(len(rows) - 1, len(columns) - 1, dtype=torch.long, device=device)
    for region in regions:
        i = slice(bisect_right(rows, region.top) - 1, bisect_left(rows, region.bottom))
        j = slice(bisect_right(columns, region.left) - 1, bisect_left(columns, region.right))
        top, bottom = (down[i.start + at : i.stop + at].clamp(region.top, region.bottom) for at in (0, 1))
        left, right = (across[j.start + at : j.stop + at].clamp(region.left, region.right) for at in (0, 1))
        corners = top[:, None], bottom[:, None], left[None, :], right[None, :]
        total[i, j] += _clipped_sum(*corners, region.highest + 1) - _clipped_sum(*corners, region.lowest)
    return total


def _clipped_sum(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, shift: int) -> Tensor:
    """The sum over top <= i < bottom of i + shift, clipped to left ... right."""
    rising = (left - shift).clamp(top, bottom)  # from here on i + shift is above left
    level = (right - shift).clamp(rising, bottom)  # from here on it is above right
    slope = (level - rising) * (rising + level - 1 + 2 * shift) // 2
    return left * (rising - top) + slope + right * (bottom - level)


def allowed_between(source: Weights, rows: Tensor, edges: Tensor) -> Tensor:
    """Allowed cells of each row, in rising order, between column edges, (batch or 1, heads or 1, rows, bins)."""
    if isinstance(source, DenseWeights) or source.lowered is None:
        high = max(1, CELLS_AT_ONCE // max(source.sizes.batch * source.sizes.heads * source.sizes.keys, 1))
        return torch.cat([_counted(_seen(source, some), edges) for some in rows.split(high)], 2)
    kept, found, listed = _kept_before(source), source.lowered.regions, rows.tolist()
    counts = []
    for row in range(max(len(found), len(kept))):
        total = torch.zeros(len(rows), len(edges) - 1, dtype=torch.long, device=source.device)
        for region in found[row if len(found) > 1 else 0]:
            beside = slice(bisect_left(listed, region.top), bisect_left(listed, region.bottom))
            if beside.stop > beside.start:
                before = kept[row if len(kept) > 1 else 0]
                total[beside] += _region_counts(region, rows[beside, None], edges, before)
        counts.append(total)
    return torch.stack(counts)[:, None]


def _seen(source: Weights, rows: Tensor) -> Tensor:
    """The cells of whole rows that may be seen, (batch or 1, heads or 1, rows, keys), asked one by one."""
    if isinstance(source, DenseWeights):
        return source.weights[:, :, rows] > 0
    every = torch.arange(source.sizes.keys, device=source.device)[None, :]
    seen = source.rule.mask.allows(rows[:, None], every, source.sizes)
    return seen if seen.dim() == 4 else seen[None, None]


def _kept_before(source: LazyWeights) -> Tensor:
    """(batch or 1, keys + 1): how many real keys stand before each position."""
    assert source.lowered is not None
    keep = source.lowered.key_mask
    if keep is None:
        return torch.arange(source.sizes.keys + 1, device=source.device)[None]
    return torch.nn.functional.pad(keep.cumsum(-1), (1, 0))


def _region_counts(region: Region, here: Tensor, edges: Tensor, kept: Tensor) -> Tensor:
    """Real keys of a region in each of its rows (rows, 1), between column edges, (rows, bins)."""
    left = (here + region.lowest).clamp(min=region.left)
    right = (here + region.highest + 1).clamp(max=region.right)
    start = torch.maximum(left, edges[:-1])
    stop = torch.maximum(torch.minimum(right, edges[1:]), start)
    limit = len(kept) - 1
    return kept[stop.clamp(0, limit)] - kept[start.clamp(0, limit)]


def _counted(seen: Tensor, edges: Tensor) -> Tensor:
    before = torch.nn.functional.pad(seen.cumsum(-1), (1, 0))
    return before[..., edges[1:]] - before[..., edges[:-1]]


def bin_of(edges: Sequence[int], length: int, device: torch.device) -> Tensor:
    """The bin of each position."""
    return torch.bucketize(
        torch.arange(length, device=device),
        torch.tensor(list(edges[1:-1]), device=device, dtype=torch.long),
        right=True,
    )
