"""A picture of a matrix from some of its rows, with its error: the preview while the whole is too long to wait for.

In: bins and how many rows of each to look at. Out: an estimate of the density of each bin and its standard error. Cost:
the cells of the rows looked at, each scored once. Memory: the picture and one block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.pooling import allowed_between, bin_of
from attnscope.matrix.schedule import Schedule, ranges
from attnscope.matrix.statistics import Weights

ROWS = 256  # rows that share one reading of the keys
BLOCK_CELLS = 2**22


class Sample(NamedTuple):
    """Result of `AttentionMatrix.sample`."""

    density: Tensor  #: estimated mean weight of the allowed cells of each bin, (..., rows, columns)
    error: Tensor  #: its standard error: 0 if all rows were read, NaN if only one of several was


def sample(
    source: Weights, rows: Sequence[int], columns: Sequence[int], each: int, schedule: Schedule
) -> tuple[Tensor, Tensor]:
    """Density and standard error from `each` evenly spread rows of every bin of rows (all, if it has no more)."""
    if each < 1:
        raise ValueError(f"sample: expected rows_per_bin of at least 1, got {each}")
    picked = torch.tensor(
        [row for start, stop in pairwise(rows) for row in spaced_rows(start, stop, each)],
        device=source.device,
    )
    row_bin = bin_of(rows, source.sizes.queries, source.device)[picked]
    edges = torch.tensor(columns, device=source.device)
    shape = (*source.sizes[:2], len(rows) - 1, len(columns) - 1)
    sums = _Sums(*(torch.zeros(shape, dtype=torch.float64, device=source.device) for _ in range(5)))
    for step in schedule.track(ranges(len(picked), ROWS)):
        here = picked[step.start : step.stop]
        weight = _bin_sums(source, here, columns, schedule).double()
        cells = allowed_between(source, here, edges).double().expand_as(weight)
        for total, part in zip(sums, (weight, cells, weight * weight, weight * cells, cells * cells), strict=True):
            total.index_add_(2, row_bin[step.start : step.stop], part)
    seen = row_bin.bincount(minlength=len(rows) - 1)
    there = torch.tensor(rows, device=source.device).diff()
    density, error = sums.estimate(seen[:, None], there[:, None])
    return density.to(source.dtype), error.to(source.dtype)


class _Sums(NamedTuple):
    """Over the rows of a bin: weight, allowed cells, and their squares and products."""

    weight: Tensor
    cells: Tensor
    weight_squared: Tensor
    product: Tensor
    cells_squared: Tensor

    def estimate(self, seen: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """The ratio of weight to cells, and its standard error for `seen` of `there` rows."""
        density = self.weight / self.cells.clamp(min=1)
        scatter = self.weight_squared - 2 * density * self.product + density.square() * self.cells_squared
        unseen = (there - seen) / there
        variance = scatter.clamp(min=0.0) / (seen - 1) * seen * unseen  # 0 / 0 where one row of many was seen: unknown
        error = variance.sqrt() / self.cells.clamp(min=1)
        return density, torch.where(unseen == 0, 0.0, error)


def _bin_sums(source: Weights, rows: Tensor, columns: Sequence[int], schedule: Schedule) -> Tensor:
    """The weight of each row in each bin of columns, (batch, heads, rows, bins), from one walk over the keys.

    The normaliser is found on the way: bins are kept as logarithms of sums of exp(score), and add up to it.
    """
    batch, heads, _, keys = source.sizes
    column_bin = bin_of(columns, keys, source.device)
    logs = torch.full((batch, heads, len(rows), len(columns) - 1), -math.inf, dtype=source.dtype, device=source.device)
    wide = max(1, BLOCK_CELLS // max(len(rows) * batch * heads, 1))
    first, last = source.column_range(rows)
    for left in range(first, last, wide):
        schedule.check()
        here = torch.arange(left, min(left + wide, last), device=source.device)
        scores = source.log_weights(rows, here) if isinstance(source, DenseWeights) else source.scores(rows, here)
        peak = scores.amax(-1, keepdim=True)
        peak = peak.masked_fill(peak == -math.inf, 0.0)
        low, high = int(column_bin[here[0]]), int(column_bin[here[-1]])
        bins = torch.arange(low, high + 1, device=source.device)
        inside = (column_bin[here][:, None] == bins).to(source.dtype)
        found = (scores.sub_(peak).exp_() @ inside).log() + peak
        logs[..., low : high + 1] = torch.logaddexp(logs[..., low : high + 1], found)
    if isinstance(source, DenseWeights):
        return logs.exp()
    lse = source.with_sinks(logs.logsumexp(-1))[..., None]
    return (logs - lse.masked_fill(lse == -math.inf, 0.0)).exp()


def spaced_rows(start: int, stop: int, count: int) -> list[int]:
    """At most so many rows of [start, stop), evenly spread.

    >>> spaced_rows(0, 9, 3), spaced_rows(4, 6, 3)
    ([1, 4, 7], [4, 5])
    """
    count = min(count, stop - start)
    return [start + (2 * at + 1) * (stop - start) // (2 * count) for at in range(count)]
