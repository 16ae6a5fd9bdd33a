"""Which rows and columns each program of the column pass reads, and where its results go.

The host computes that from the intervals of the mask, and one copy brings it to the device: on a GPU, the same
integers would be twenty small kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.intervals import BlockRows, RowBounds, block_rows
from attnscope.attention.transfers import to_device


class ColumnLayout(NamedTuple):
    """The blocks of keys and the bins of queries of one column pass; int32."""

    left: Tensor  #: first key of each block, (blocks,)
    right: Tensor  #: its last key, exclusive, (blocks,)
    rows: BlockRows  #: the queries of each block
    edges: Tensor  #: of the bins of queries, (bins + 1,)
    counts: tuple[int, ...]  #: the number of results of each bin of keys, which are summed later
    group: int  #: neighbouring keys that have one result; as many as a program reads if it is one per block
    first_column: int

    @property
    def width(self) -> int:
        """The number of results of each bin of queries."""
        return sum(self.counts)

    def to(self, device: torch.device) -> ColumnLayout:
        """Return the layout on a device, by one copy."""
        tensors = self.left, self.right, *self.rows, self.edges
        moved = to_device(torch.cat([one.flatten() for one in tensors]), device).split([one.numel() for one in tensors])
        left, right, *rows, edges = (part.view(one.shape) for part, one in zip(moved, tensors, strict=True))
        return self._replace(left=left, right=right, rows=BlockRows(*rows), edges=edges)


def make_column_layout(
    bounds: RowBounds,
    row_edges: Sequence[int],
    column_edges: Sequence[int],
    block_keys: int,
    *,
    group: int | None = None,
) -> ColumnLayout:
    """Return the layout for bins that are given by their edges; equal edges make an empty bin.

    Args:
        bounds: Of the intervals of all queries, in main memory.
        row_edges: Edges of the bins of queries.
        column_edges: Edges of the bins of keys.
        block_keys: The keys that one program reads.
        group: The number of neighbouring keys that have one result, a power of 2 below `block_keys`. By default the
            width of the bins if they are equal, 1 if several bins share a block, and else all keys of a block.
    """
    widths = [right - left for left, right in pairwise(column_edges)]
    group = _group_of(widths, block_keys) if group is None else group
    if group < block_keys:
        counts = [-(-width // group) for width in widths]
        left = torch.arange(column_edges[0], column_edges[-1], block_keys, dtype=torch.int32)
        right = (left + block_keys).clamp(max=column_edges[-1])
    else:
        counts = [-(-width // block_keys) for width in widths]
        starts = [range(start, stop, block_keys) for start, stop in pairwise(column_edges)]
        left = torch.tensor([at for some in starts for at in some], dtype=torch.int32)
        right = torch.tensor([min(at + block_keys, some.stop) for some in starts for at in some], dtype=torch.int32)
    edges = torch.tensor(list(row_edges), dtype=torch.int32)
    return ColumnLayout(left, right, block_rows(bounds, left, right), edges, tuple(counts), group, column_edges[0])


def _group_of(widths: Sequence[int], block_keys: int) -> int:
    """Return how many neighbouring keys have one result, for bins of these widths."""
    *others, last = widths
    width = others[0] if others else last
    are_equal = set(others) <= {width} and 0 < last <= width
    if are_equal and width < block_keys and width & (width - 1) == 0:
        return width
    return 1 if 2 * max(widths) <= block_keys else block_keys


def sum_parts(parts: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the sum of the results of each bin of keys, (..., bins)."""
    return parts if set(counts) == {1} else _segments(parts, counts).sum(-1)


def max_parts(parts: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the largest of the results of each bin of keys, 0 for empty bins, (..., bins)."""
    return parts if set(counts) == {1} else _segments(parts, counts).amax(-1)


def _segments(parts: Tensor, counts: Sequence[int]) -> Tensor:
    """Reshape (..., sum of counts) to (..., bins, largest count), with 0 where a bin has fewer parts."""
    widest = max(counts)
    if not widest:
        return parts.new_zeros(*parts.shape[:-1], len(counts), 1)
    if min(counts) == widest:
        return parts.unflatten(-1, (len(counts), widest))
    count = torch.tensor(counts)
    ramp = torch.arange(widest)
    index = (count.cumsum(0) - count)[:, None] + ramp
    inside = ramp < count[:, None]
    # Behind the last part comes a 0, for bins that have fewer parts than others.
    padded = torch.nn.functional.pad(parts, (0, 1))
    return padded[..., to_device(index.where(inside, parts.shape[-1]), parts.device)]
