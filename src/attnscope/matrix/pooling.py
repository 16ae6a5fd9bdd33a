"""Downsamples a matrix into bins of rows and columns.

density is the mean weight of the cells that the mask allows; mass is the sum over the keys of a bin, averaged over the
queries that have a key, so that rows still sum to 1; max is the largest weight. Bins without an allowed cell have 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.matrix.blocks import Weights, reduce_blocks
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.positions import bins_of_positions
from attnscope.matrix.reducers import BinAxis, BinMax, BinSums
from attnscope.matrix.schedule import Schedule
from attnscope.matrix.visible_cells import count_visible

REDUCTIONS = ("density", "mass", "max")


def even_edges(length: int, bins: int) -> list[int]:
    """Edges of bins of nearly equal width.

    >>> even_edges(10, 4)
    [0, 2, 5, 7, 10]
    """
    if not 1 <= bins <= length:
        raise ValueError(f"pool: expected 1 ... {length} bins for {length} positions, got {bins}")
    return [length * at // bins for at in range(bins + 1)]


def pool(source: Weights, rows: Sequence[int], columns: Sequence[int], reduction: str, schedule: Schedule) -> Tensor:
    """The pooled matrix, (batch, heads, row bins, column bins), with bins given by their edges."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"pool: expected reduction to be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    down, across = BinAxis(rows), BinAxis(columns)
    if reduction == "max":
        reducer = BinMax(source, down, across)
        reduce_blocks(source, [reducer], schedule, align=(down.align, across.align))
        return reducer.result
    first, second = schedule.split(2)
    if reduction == "mass":
        cells = count_visible(source, rows, [0, source.sizes.keys], first, count="rows")
    else:
        cells = count_visible(source, rows, columns, first)
    if isinstance(source, LazyWeights) and source.fused:
        return _fused_sums(source, rows, columns, second) / cells.clamp(min=1)
    sums = BinSums(source, down, across)
    reduce_blocks(source, [sums], second, align=(down.align, across.align))
    return sums.result / cells.clamp(min=1)


def _fused_sums(source: LazyWeights, rows: Sequence[int], columns: Sequence[int], schedule: Schedule) -> Tensor:
    """The sum of each bin by the fused kernel, up to 1.3 times as fast as `BinSums`.

    Attention over the columns of some bins, with the indicators of the bins as values, is multiplied by
    exp(lse of these columns - lse of the row), their share of the row.
    """
    shape = (*source.sizes[:2], len(rows) - 1, len(columns) - 1)
    total = torch.zeros(shape, dtype=source.dtype, device=source.device)
    row_bin = bins_of_positions(rows, source.device)
    width = source.query.shape[-1]
    starts = range(0, len(columns) - 1, width)
    first, second = schedule.split(2)
    lse = source.lse(first)
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    for start, part in zip(starts, second.split(len(starts)), strict=True):
        edges = columns[start : start + width + 1]
        bins = bins_of_positions(edges, source.device)
        indicators = torch.nn.functional.one_hot(bins, len(edges) - 1).to(source.dtype)
        values = indicators.expand(source.sizes.batch, source.spec.num_kv_heads, -1, -1)
        for step in part.track(source.row_steps(part)):
            here = slice(step.start, step.stop)
            output, part_lse = source.row_products(step, values, columns=(edges[0], edges[-1]))
            share = (part_lse - lse[:, :, here]).exp()
            found = total[..., start : start + len(edges) - 1]
            found.index_add_(2, row_bin[here], output * share[..., None])
    return total
