"""Reducers of blockwise passes that several statistics share: bins of rows and columns, and sums over rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.matrix.blocks import Block, Weights
from attnscope.matrix.positions import bins_of_positions

MAX_INDICATORS = 64  # column bins of a block up to which a product with indicators is faster than index_add


class Segments(NamedTuple):
    """The bins that a part of an axis meets, and how many of its positions lie in each."""

    bins: slice
    widths: list[int]
    width: int | None  # of each bin, if they are equal


class BinAxis:
    """Bins along one axis, given by their edges; equal edges make an empty bin."""

    def __init__(self, edges: Sequence[int]) -> None:
        self.edges = edges
        self._known: dict[tuple[int, int], Segments] = {}

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def align(self) -> int:
        """The width of the first bin."""
        return max(self.edges[1] - self.edges[0], 1)

    def segments(self, part: slice) -> Segments:
        """The bins that positions [start, stop) meet."""
        start, stop = part.start, part.stop
        if (start, stop) not in self._known:
            first, last = bisect_right(self.edges, start) - 1, bisect_left(self.edges, stop)
            widths = [b - a for a, b in pairwise([start, *self.edges[first + 1 : last], stop])]
            equal = len(set(widths)) == 1
            self._known[start, stop] = Segments(slice(first, last), widths, widths[0] if equal else None)
        return self._known[start, stop]


def sum_segments(block: Tensor, segments: Segments, dim: int) -> Tensor:
    """The sum over each segment of rows (dim=-2) or columns (dim=-1)."""
    if segments.width is not None:
        return block if segments.width == 1 else block.unflatten(dim, (-1, segments.width)).sum(dim)
    bins = len(segments.widths)
    index = bins_of_positions([0, *accumulate(segments.widths)], block.device)
    if dim == -1 and bins <= MAX_INDICATORS:
        return block @ torch.nn.functional.one_hot(index, bins).to(block)
    shape = list(block.shape)
    shape[dim] = bins
    return block.new_zeros(shape).index_add_(dim, index, block)


def max_segments(block: Tensor, segments: Segments, dim: int) -> Tensor:
    """The maximum over each segment of rows (dim=-2) or columns (dim=-1)."""
    if segments.width is not None:
        return block if segments.width == 1 else block.unflatten(dim, (-1, segments.width)).amax(dim)
    return torch.stack([part.amax(dim) for part in block.split(segments.widths, dim)], dim)


class _BinReducer:
    """A number for each bin of rows and columns, (batch, heads, row bins, column bins)."""

    def __init__(self, source: Weights, rows: BinAxis, columns: BinAxis, dtype: torch.dtype | None = None) -> None:
        self.rows, self.columns = rows, columns
        shape = (*source.sizes[:2], len(rows), len(columns))
        self.result = torch.zeros(shape, dtype=dtype or source.dtype, device=source.device)

    def _meet(self, block: Block) -> tuple[Segments, Segments, Tensor]:
        """The segments of a block, and the result of the bins that it meets."""
        down, across = self.rows.segments(block.rows), self.columns.segments(block.columns)
        return down, across, self.result[block.batch, block.heads, down.bins, across.bins]


class BinSums(_BinReducer):
    """The sum of each bin, and of each column between the outer edges."""

    def __init__(self, source: Weights, rows: BinAxis, columns: BinAxis) -> None:
        super().__init__(source, rows, columns)
        self.first, width = columns.edges[0], columns.edges[-1] - columns.edges[0]
        self.column_sums = torch.zeros(*source.sizes[:2], width, dtype=source.dtype, device=source.device)

    def add(self, block: Block) -> None:
        """Add a block."""
        down, across, result = self._meet(block)
        lines = sum_segments(block.weights, down, -2)
        left, right = block.columns.start - self.first, block.columns.stop - self.first
        self.column_sums[block.batch, block.heads, left:right].add_(lines.sum(-2))
        result += sum_segments(lines, across, -1)


class BinMax(_BinReducer):
    """The largest weight of each bin, 0 without a cell."""

    def add(self, block: Block) -> None:
        """Add a block."""
        down, across, result = self._meet(block)
        torch.maximum(result, max_segments(max_segments(block.weights, down, -2), across, -1), out=result)


class BinCounts(_BinReducer):
    """The number of cells of each bin that the mask allows."""

    def __init__(self, source: Weights, rows: BinAxis, columns: BinAxis) -> None:
        super().__init__(source, rows, columns, torch.long)

    def add(self, block: Block) -> None:
        """Add a block; it is small enough to be counted in fp32."""
        down, across, result = self._meet(block)
        if block.visible is None and down.width is not None and across.width is not None:
            result += down.width * across.width
        elif block.visible is None:
            cells = torch.tensor(down.widths)[:, None] * torch.tensor(across.widths)
            result += cells.to(result.device)
        else:
            visible = block.visible.expand(*block.visible.shape[:-2], *block.weights.shape[-2:]).float()
            result += sum_segments(sum_segments(visible, down, -2), across, -1).long()


class RowSums:
    """The sum over columns of a function of each block, (batch, heads, rows)."""

    def __init__(self, source: Weights, rows: int, function: Callable[[Block], Tensor]) -> None:
        self.function = function
        self.result = torch.zeros(*source.sizes[:2], rows, dtype=source.dtype, device=source.device)

    def add(self, block: Block) -> None:
        """Add a block."""
        self.result[block.batch, block.heads, block.rows].add_(self.function(block))


def block_entropy(block: Block) -> Tensor:
    """-sum of w log w over the columns of a block; overwrites its logarithms."""
    return block.log_weights.mul_(block.weights).sum(-1).neg_()
