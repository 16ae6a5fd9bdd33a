"""Masks as one interval of keys per query, in O(n) memory on the device of the tensors.

Causal, sliding-window, document, padding and prefix masks, and most of their combinations, allow each query one
interval of keys. `to_intervals` decides that from the integers of the regions and computes the intervals on the device,
so nothing waits for a device. `block_rows` finds which queries attend to each block of keys, also on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.algebra import RegionMask, Sizes
from attnscope.attention.regions import Region

NO_KEY = torch.iinfo(torch.int32).max
MAX_CHECKS = 1_000_000  # regions, counted once for each stretch of rows that they cross, before the mask is too complex


class Intervals(NamedTuple):
    """The keys [start, stop) of each query, int32 of shape (batch or 1, queries).

    A query without keys has start = stop = the largest stop of the queries before it, so that both stay sorted where
    those of the other queries are.
    """

    start: Tensor
    stop: Tensor
    backward_only: bool  #: no query attends to a key after its own position, with the queries as the last of the keys


class BlockRows(NamedTuple):
    """The queries of each block of keys, int32 of shape (batch or 1, blocks).

    Outside of [first, last) no query attends to the block. In [full_first, full_last), which lies inside, all queries
    attend to all of it. Both are as tight as possible if starts and stops are sorted.
    """

    first: Tensor
    last: Tensor
    full_first: Tensor
    full_last: Tensor


class _Stretch(NamedTuple):
    """Consecutive rows with keys [max(left, row + lowest), min(right, row + highest + 1))."""

    top: int
    left: int
    right: int
    lowest: int
    highest: int


def to_intervals(region_mask: RegionMask | None, sizes: Sizes, device: torch.device) -> Intervals | None:
    """Return the interval of keys of each query; None if a query has several, or if the mask is not known as regions.

    >>> from attnscope.attention import Causal
    >>> sizes = Sizes(batch=1, heads=1, queries=3, keys=3)
    >>> to_intervals(Causal().to_regions(sizes), sizes, torch.device("cpu")).stop
    tensor([[1, 2, 3]], dtype=torch.int32)
    """
    if region_mask is None or region_mask.key_mask is not None:
        return None
    tables = [_find_stretches(regions, sizes.queries) for regions in region_mask.regions]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        return None
    offset = sizes.keys - sizes.queries
    backward_only = all(region.highest <= offset for regions in region_mask.regions for region in regions)
    rows = [_expand(table, sizes.queries, device) for table in known]
    start, stop = (torch.stack(each) for each in zip(*rows, strict=True))
    return Intervals(start, stop, backward_only)


def block_rows(intervals: Intervals, left: Tensor, right: Tensor) -> BlockRows:
    """Return which queries attend to each block of keys [left, right), given as int32 of shape (blocks,)."""
    start, stop, _ = intervals
    left, right = (edge.expand(len(start), -1).contiguous() for edge in (left, right))
    has_keys = stop > start
    stop_before = torch.where(has_keys, stop, 0).cummax(-1).values
    start_after = torch.where(has_keys, start, NO_KEY).flip(-1).cummin(-1).values.flip(-1).contiguous()
    first = torch.searchsorted(stop_before, left, right=True, out_int32=True)
    last = torch.searchsorted(start_after, right, out_int32=True).maximum(first)
    # In these rows every start is at most `left`, and every stop at least `right`.
    stop_after = stop.flip(-1).cummin(-1).values.flip(-1).contiguous()
    start_before = start.cummax(-1).values
    full_first = torch.searchsorted(stop_after, right, out_int32=True)
    full_last = torch.searchsorted(start_before, left, right=True, out_int32=True)
    full_first = full_first.maximum(first).minimum(last)
    full_last = full_last.minimum(last).maximum(full_first)
    return BlockRows(first, last, full_first, full_last)


def _find_stretches(regions: Sequence[Region], num_rows: int) -> list[_Stretch] | None:
    """Return the rows in stretches whose left and right bounds do not change; None if a row has several intervals."""
    cuts = sorted({0, num_rows, *(row for region in regions for row in (region.top, region.bottom))})
    stretches, reached, checks = [], 0, 0
    for (top, bottom), active in zip(pairwise(cuts), _active_regions(regions, cuts), strict=True):
        checks += len(active)
        active = sorted(active, key=lambda region: _start(region, top))
        if checks > MAX_CHECKS or any(not _touch(a, b, top, bottom) for a, b in pairwise(active)):
            return None
        if active:
            first, last = active[0], active[-1]
            stretches.append(_Stretch(top, first.left, last.right, first.lowest, last.highest))
            reached = max(reached, _stop(last, bottom - 1))
        else:
            stretches.append(_Stretch(top, reached, reached, -num_rows, num_rows + reached))
    return stretches


def _active_regions(regions: Sequence[Region], cuts: Sequence[int]) -> Iterator[list[Region]]:
    """Yield the regions between each two neighbouring cuts."""
    waiting = sorted(regions, key=lambda region: region.top, reverse=True)
    active: list[Region] = []
    for top in cuts[:-1]:
        active = [region for region in active if region.bottom > top]
        while waiting and waiting[-1].top == top:
            active.append(waiting.pop())
        yield active


def _touch(first: Region, second: Region, top: int, bottom: int) -> bool:
    """Whether `second` begins where `first` ends in every row; disjoint regions keep their order along the rows.

    Both bounds are linear with one bend each, so the rows around the bends and the outer rows decide.
    """
    bends = first.right - first.highest - 1, second.left - second.lowest
    rows = {top, bottom - 1, *(row + step for row in bends for step in (-1, 0, 1))}
    return all(_stop(first, row) == _start(second, row) for row in rows if top <= row < bottom)


def _start(region: Region, row: int) -> int:
    return max(region.left, row + region.lowest)


def _stop(region: Region, row: int) -> int:
    return min(region.right, row + region.highest + 1)


def _expand(stretches: Sequence[_Stretch], num_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return start and stop of each row."""
    rows = torch.arange(num_rows, dtype=torch.int32, device=device)
    if len(stretches) == 1:
        _, left, right, lowest, highest = stretches[0]
    else:
        table = torch.tensor(stretches, dtype=torch.int32, device=device).reshape(-1, len(_Stretch._fields))
        index = torch.searchsorted(table[:, 0].contiguous(), rows, right=True) - 1
        left, right, lowest, highest = table[index, 1:].unbind(-1)
    return (rows + lowest).clamp(min=left), (rows + highest + 1).clamp(max=right)
