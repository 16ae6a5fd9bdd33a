"""The mask of a sequence that was run in several steps with a KV cache: the masks of the steps, stacked.

In: the mask of each step, and its rows and columns. Out: a `Mask` over all rows and columns.
Does not know: models, tensors of queries or keys. Memory: that of the masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from attnscope.attention import regions
from attnscope.attention.algebra import Mask, RegionMask, Sizes
from attnscope.attention.regions import Region
from attnscope.errors import ShapeError


@dataclass(frozen=True)
class Step:
    """The mask of rows [top, bottom) over columns [left, right); all other columns are hidden from them."""

    mask: Mask
    top: int
    bottom: int
    left: int
    right: int

    def inner(self, sizes: Sizes) -> Sizes:
        """The sizes of the call that the mask was made for."""
        return Sizes(sizes.batch, sizes.heads, self.bottom - self.top, self.right - self.left)


@dataclass(frozen=True)
class StackedMask(Mask):
    """Steps in the order of their rows, without gaps."""

    steps: tuple[Step, ...]

    @property
    def is_static(self) -> bool:
        return all(step.mask.is_static for step in self.steps)

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        tops = torch.tensor([step.top for step in self.steps], device=query.device)
        query, key, number = torch.broadcast_tensors(query, key, torch.bucketize(query, tops, right=True) - 1)
        shape, order = query.shape, number.flatten().argsort(stable=True)
        query, key, number = (one.flatten()[order] for one in (query, key, number))
        numbers, counts = torch.unique_consecutive(number, return_counts=True)
        ends = counts.cumsum(0).tolist()
        found = [
            self._cells(self.steps[step], query[start:end], key[start:end], sizes)
            for step, start, end in zip(numbers.tolist(), [0, *ends], ends, strict=False)
        ]
        leading = torch.broadcast_shapes(*(one.shape[:-1] for one in found))
        cells = torch.cat([one.expand(*leading, -1) for one in found] or [query.bool()], -1)
        return cells[..., order.argsort()].reshape(*leading, *shape)

    @staticmethod
    def _cells(step: Step, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        """Whether each cell of a step is allowed, (cells,) or (batch, heads, cells)."""
        columns = (key - step.left).clamp(0, step.right - step.left - 1)
        inside = (key >= step.left) & (key < step.right)
        return step.mask.allows(query - step.top, columns, step.inner(sizes)) & inside

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        found = [step.mask.to_regions(step.inner(sizes)) for step in self.steps]
        if any(one is None or one.key_mask is not None for one in found):
            return None
        parts = [one.regions for one in found if one is not None]
        rows = max(map(len, parts), default=1)
        return RegionMask(tuple(tuple(self._shift_regions(parts, row)) for row in range(rows)))

    def _shift_regions(self, parts: list[tuple[tuple[Region, ...], ...]], row: int) -> Iterator[Region]:
        """The regions of a batch row, moved to the rows and columns of their steps."""
        for step, part in zip(self.steps, parts, strict=True):
            yield from regions.shift(part[row if len(part) > 1 else 0], step.top, step.left)

    def check(self, sizes: Sizes) -> None:
        ends = [(step.top, step.bottom) for step in self.steps]
        joined = all(one[1] == two[0] for one, two in pairwise(ends))
        if not ends or ends[0][0] or ends[-1][1] != sizes.queries or not joined:
            raise ShapeError(f"{self}: expected rows that cover {sizes.queries} queries without gaps, got {ends}")
        for step in self.steps:
            if step.right > sizes.keys or step.left < 0:
                raise ShapeError(f"{self}: expected at most {sizes.keys} columns, got {step.right}")
            step.mask.check(step.inner(sizes))

    def narrow(self, batch: slice, heads: slice | list[int]) -> StackedMask:
        return StackedMask(tuple(replace(step, mask=step.mask.narrow(batch, heads)) for step in self.steps))

    def __repr__(self) -> str:
        return f"StackedMask({len(self.steps)} steps)"
