"""Counts the cells that a mask allows: in bins, of rows and of columns, without computing weights.

Masks that are regions are counted by arithmetic on their corners, others cell by cell. Memory: the counts, and a block
of booleans for masks without structure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.attention.block_sizes import block_sizes
from attnscope.attention.regions import Region
from attnscope.matrix.blocks import Weights
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.positions import Positions, bins_of_positions
from attnscope.matrix.schedule import Schedule, ranges


def count_visible(
    source: Weights, rows: Sequence[int], columns: Sequence[int], schedule: Schedule, *, count: str = "cells"
) -> Tensor:
    """The number of allowed cells of each bin, (batch, heads, row bins, column bins).

    With count="rows", the number of rows of each bin that have an allowed cell.
    """
    batch, heads, queries, _ = source.sizes
    if (
        count == "cells"
        and isinstance(source, LazyWeights)
        and source.region_mask is not None
        and source.region_mask.key_mask is None
    ):
        found = torch.stack([_areas(regions, rows, columns) for regions in source.region_mask.regions])
        return found.to(source.device)[:, None].expand(batch, heads, -1, -1)
    total = torch.zeros(batch, heads, len(rows) - 1, len(columns) - 1, dtype=torch.long, device=source.device)
    row_bin = bins_of_positions(rows, source.device)
    edges = torch.tensor(columns, device=source.device)
    cells = min(block_sizes(source.device).mask_cells // 4, schedule.limit(source.device) // 64)  # of 8 bytes each
    high = max(1, cells // max(len(columns) * batch, 1))
    for step in schedule.track(ranges(queries, high)):
        found = count_between(source, Positions(step, source.device), edges)
        if count == "rows":
            found = (found.sum(-1, keepdim=True) > 0).long()
        total.index_add_(2, row_bin[step.start : step.stop], found.expand(batch, heads, -1, -1))
    return total


def count_visible_queries(source: Weights, schedule: Schedule) -> Tensor:
    """The number of queries that may attend to each key, (batch, heads, keys)."""
    batch, heads, queries, keys = source.sizes
    edges = range(keys + 1)
    if not isinstance(source, LazyWeights) or source.region_mask is None:
        return count_visible(source, [0, queries], edges, schedule).squeeze(-2)
    areas = [_areas(regions, [0, queries], edges) for regions in source.region_mask.regions]
    found, key_mask = torch.cat(areas).to(source.device), source.region_mask.key_mask
    return (found if key_mask is None else found * key_mask)[:, None].expand(batch, heads, -1)


def _areas(regions: Sequence[Region], rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """The number of cells of disjoint regions in each bin, (row bins, column bins), in main memory.

    The numbers are small, and a mask may have thousands of regions: each would be many calls of a GPU.
    """
    down, across = torch.tensor(rows), torch.tensor(columns)
    total = torch.zeros(len(rows) - 1, len(columns) - 1, dtype=torch.long)
    for region in regions:
        i = slice(bisect_right(rows, region.top) - 1, bisect_left(rows, region.bottom))
        j = slice(bisect_right(columns, region.left) - 1, bisect_left(columns, region.right))
        top, bottom = (down[i.start + at : i.stop + at].clamp(region.top, region.bottom) for at in (0, 1))
        left, right = (across[j.start + at : j.stop + at].clamp(region.left, region.right) for at in (0, 1))
        corners = top[:, None], bottom[:, None], left[None, :], right[None, :]
        total[i, j].add_(_clipped_sum(*corners, region.highest + 1) - _clipped_sum(*corners, region.lowest))
    return total


def _clipped_sum(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, shift: int) -> Tensor:
    """The sum over top <= i < bottom of i + shift, clipped to left ... right."""
    rising = (left - shift).clamp(top, bottom)  # from here on i + shift is above left
    level = (right - shift).clamp(rising, bottom)  # from here on it is above right
    slope = (level - rising) * (rising + level - 1 + 2 * shift) // 2
    return left * (rising - top) + slope + right * (bottom - level)


def count_between(source: Weights, rows: Positions, edges: Tensor) -> Tensor:
    """The number of allowed cells of increasing rows between column edges, (batch or 1, heads or 1, rows, bins)."""
    if isinstance(source, DenseWeights) or source.region_mask is None:
        cells = block_sizes(source.device).mask_cells
        high = max(1, cells // max(source.sizes.batch * source.sizes.heads * source.sizes.keys, 1))
        parts = rows.tensor.split(high)
        return torch.cat([_count_between_edges(_allowed_rows(source, some), edges) for some in parts], 2)
    kept, found, listed = _real_keys_before(source), source.region_mask.regions, rows.tolist()
    counts = []
    for row in range(max(len(found), len(kept))):
        total = torch.zeros(len(rows), len(edges) - 1, dtype=torch.long, device=source.device)
        for region in found[row if len(found) > 1 else 0]:
            beside = slice(bisect_left(listed, region.top), bisect_left(listed, region.bottom))
            if beside.stop > beside.start:
                before = kept[row if len(kept) > 1 else 0]
                total[beside].add_(_region_counts(region, rows.tensor[beside, None], edges, before))
        counts.append(total)
    return torch.stack(counts)[:, None]


def _allowed_rows(source: Weights, rows: Tensor) -> Tensor:
    """The allowed cells of whole rows, (batch or 1, heads or 1, rows, keys)."""
    if isinstance(source, DenseWeights):
        return source.weights[:, :, rows] > 0
    every = torch.arange(source.sizes.keys, device=source.device)[None, :]
    seen = source.spec.mask.allows(rows[:, None], every, source.sizes)
    return seen if seen.dim() == 4 else seen[None, None]


def _real_keys_before(source: LazyWeights) -> Tensor:
    """The number of keys before each position that are not padding, (batch or 1, keys + 1)."""
    assert source.region_mask is not None
    key_mask = source.region_mask.key_mask
    if key_mask is None:
        return torch.arange(source.sizes.keys + 1, device=source.device)[None]
    return torch.nn.functional.pad(key_mask.cumsum(-1), (1, 0))


def _region_counts(region: Region, here: Tensor, edges: Tensor, kept: Tensor) -> Tensor:
    """The number of unpadded keys of a region in its rows (rows, 1) between column edges, (rows, bins)."""
    left = (here + region.lowest).clamp(min=region.left)
    right = (here + region.highest + 1).clamp(max=region.right)
    start = torch.maximum(left, edges[:-1])
    stop = torch.maximum(torch.minimum(right, edges[1:]), start)
    limit = len(kept) - 1
    return kept[stop.clamp(0, limit)] - kept[start.clamp(0, limit)]


def _count_between_edges(seen: Tensor, edges: Tensor) -> Tensor:
    before = torch.nn.functional.pad(seen.cumsum(-1), (1, 0))
    return before[..., edges[1:]] - before[..., edges[:-1]]
