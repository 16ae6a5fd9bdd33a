"""Estimates the pooled matrix from some rows of each bin, with its standard error: a preview of a large matrix.

Cost: the cells of the selected rows. Memory: the result and two blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.float64 import float64_device
from attnscope.matrix.blocks import Weights, reduce_blocks
from attnscope.matrix.positions import Positions, bins_of_positions
from attnscope.matrix.reducers import BinAxis, BinSums
from attnscope.matrix.schedule import Schedule, ranges
from attnscope.matrix.visible_cells import count_between

ROWS = 256  # rows that are read at a time


class Sample(NamedTuple):
    """Result of `AttentionMatrix.sample`."""

    density: Tensor  #: estimated mean weight of the allowed cells of each bin, (..., rows, columns)
    error: Tensor  #: its standard error: 0 if all rows were read, NaN if only one of several was


def sample(
    source: Weights, rows: Sequence[int], columns: Sequence[int], rows_per_bin: int, schedule: Schedule
) -> tuple[Tensor, Tensor]:
    """Density and standard error from evenly spaced rows of each bin (all rows of a bin that has no more)."""
    if rows_per_bin < 1:
        raise ValueError(f"sample: expected rows_per_bin of at least 1, got {rows_per_bin}")
    each = [spaced_rows(start, stop, rows_per_bin) for start, stop in pairwise(rows)]
    exact = float64_device(source.device)
    picked = Positions([row for some in each for row in some], source.device)
    seen = torch.tensor([len(some) for some in each], device=exact)
    row_bin = bins_of_positions([0, *accumulate(map(len, each))], exact)
    across, edges = BinAxis(columns), torch.tensor(columns, device=source.device)
    shape = (*source.sizes[:2], len(rows) - 1, len(columns) - 1)
    sums = _Sums(*(torch.zeros(shape, dtype=torch.float64, device=exact) for _ in range(5)))
    steps = ranges(len(picked), ROWS)
    for step, part in zip(steps, schedule.split(len(steps)), strict=True):
        here = picked[step.start : step.stop]
        weight_of_rows = BinSums(source, BinAxis(range(len(here) + 1)), across)
        reduce_blocks(source, [weight_of_rows], part, rows=here, align=(1, across.align))
        weight = weight_of_rows.result.to(exact).double()
        cells = count_between(source, here, edges).to(exact).double().expand_as(weight)
        for total, each_row in zip(sums, (weight, cells, weight * weight, weight * cells, cells * cells), strict=True):
            total.index_add_(2, row_bin[step.start : step.stop], each_row)
    there = torch.tensor(rows, device=exact).diff()
    density, error = sums.estimate(seen[:, None], there[:, None])
    return density.to(source.dtype).to(source.device), error.to(source.dtype).to(source.device)


class _Sums(NamedTuple):
    """Sums over the rows of a bin of weight, allowed cells, and their squares and products."""

    weight: Tensor
    cells: Tensor
    weight_squared: Tensor
    product: Tensor
    cells_squared: Tensor

    def estimate(self, seen: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """The ratio of weight to cells, and its standard error if `seen` of `there` rows were read."""
        density = self.weight / self.cells.clamp(min=1)
        scatter = self.weight_squared - 2 * density * self.product + density.square() * self.cells_squared
        unseen = (there - seen) / there
        variance = scatter.clamp(min=0.0) / (seen - 1) * seen * unseen  # 0 / 0 if one row of several was read: unknown
        error = variance.sqrt() / self.cells.clamp(min=1)
        return density, torch.where(unseen == 0, 0.0, error)


def spaced_rows(start: int, stop: int, count: int) -> list[int]:
    """At most `count` evenly spaced rows of [start, stop).

    >>> spaced_rows(0, 9, 3), spaced_rows(4, 6, 3)
    ([1, 4, 7], [4, 5])
    """
    count = min(count, stop - start)
    return [start + (2 * at + 1) * (stop - start) // (2 * count) for at in range(count)]
