"""Sum, count and maximum of the cells between any edges of rows and columns, in one pass.

Edges need not start at 0 nor end with the matrix. Where every position is an edge, bins are single cells. Memory: the
results and two blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from attnscope.attention.transfers import to_device
from attnscope.matrix.blocks import Weights, reduce_blocks
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.positions import Positions
from attnscope.matrix.reducers import BinAxis, BinCounts, BinMax, BinSums, RowSums, block_entropy
from attnscope.matrix.sampling import spaced_rows
from attnscope.matrix.schedule import Schedule
from attnscope.matrix.visible_cells import count_cells


class Bins(NamedTuple):
    """Result of `AttentionMatrix.bins`."""

    sums: Tensor  #: sum of the weights of each bin, (..., row bins, column bins)
    visible_cells: Tensor  #: number of cells that the mask allows, (..., row bins, column bins)
    max: Tensor  #: largest weight, 0 without a cell, (..., row bins, column bins)
    entropy: Tensor  #: sum of -w log w over the columns of each row that was read, (..., rows); see `marginals`
    received: Tensor  #: sum of each column over the rows that were read, (..., columns); see `marginals`


def find_bins(
    source: Weights,
    row_edges: Sequence[int],
    column_edges: Sequence[int],
    rows_per_bin: int | None,
    schedule: Schedule,
    *,
    marginals: bool = True,
) -> Bins:
    """The bins between these edges, (batch, heads, ...), from all rows or from `rows_per_bin` rows of each bin."""
    row_edges = _check_edges(row_edges, source.sizes.queries, "row")
    edges = _check_edges(column_edges, source.sizes.keys, "column")
    rows, cuts = _select_rows(row_edges, rows_per_bin)
    is_whole = edges[0] == 0 and edges[-1] == source.sizes.keys  # the entropy of a part of a row is in no kernel
    if isinstance(source, LazyWeights) and rows_per_bin is None and (is_whole or not marginals):
        found = _bins_by_kernels(source, row_edges, edges, schedule, marginals=marginals)
        if found is not None:
            return found
    axes = BinAxis(cuts), BinAxis(edges)
    sums, counts, maximum = BinSums(source, *axes), BinCounts(source, *axes), BinMax(source, *axes)
    entropy = RowSums(source, len(rows) if marginals else 0, block_entropy)
    reduce_blocks(
        source,
        [sums, counts, maximum, *([entropy] if marginals else [])],
        schedule,
        rows=Positions(rows, source.device),
        columns=range(edges[0], edges[-1]),
        align=(axes[0].align, axes[1].align),
    )
    received = sums.column_sums if marginals else sums.column_sums[..., :0]
    return Bins(sums.result, counts.result, maximum.result, entropy.result, received)


def _bins_by_kernels(
    source: LazyWeights, row_edges: list[int], column_edges: list[int], schedule: Schedule, *, marginals: bool
) -> Bins | None:
    """The bins by one column pass, and by another the sums of columns; None where there are no kernels."""
    passes = source.passes
    if passes is None or source.region_mask is None:
        return None
    first, second, third = schedule.split(3)
    top, bottom = row_edges[0], row_edges[-1]
    few_rows = 4 * (bottom - top) <= source.sizes.queries and not passes.knows_lse
    some, edges = (
        (passes, row_edges)
        if not few_rows
        else (
            passes.select_rows(top, bottom),
            [edge - top for edge in row_edges],
        )
    )
    lse = some.lse_base2(first)
    sums, largest = some.bins(edges, column_edges, lse, second, maximum=True)
    assert largest is not None
    batch, heads = source.sizes[:2]
    cells = to_device(count_cells(source.region_mask, row_edges, column_edges), source.device)
    cells = cells[:, None].expand(batch, heads, -1, -1)
    if not marginals:
        return Bins(sums, cells, largest, entropy=lse[..., :0], received=lse[..., :0])
    entropy = some.rows(first).entropy[:, :, edges[0] : edges[-1]]
    return Bins(sums, cells, largest, entropy, some.received(lse, third, range(edges[0], edges[-1])))


def _check_edges(edges: Sequence[int], length: int, name: str) -> list[int]:
    found = [int(edge) for edge in edges]
    increasing = all(low < high for low, high in pairwise(found))
    if len(found) < 2 or not increasing or found[0] < 0 or found[-1] > length:
        shown = f"{len(found)} edges, {found[0]} ... {found[-1]}" if found else "none"
        raise ValueError(f"bins: expected at least two increasing {name} edges between 0 and {length}, got {shown}")
    return found


def _select_rows(edges: list[int], rows_per_bin: int | None) -> tuple[Sequence[int], list[int]]:
    """The rows to read, and the edges of the bins among them."""
    if rows_per_bin is None:
        return range(edges[0], edges[-1]), [edge - edges[0] for edge in edges]
    if rows_per_bin < 1:
        raise ValueError(f"bins: expected rows_per_bin of at least 1, got {rows_per_bin}")
    rows, cuts = [], [0]
    for start, stop in pairwise(edges):
        rows += spaced_rows(start, stop, rows_per_bin)
        cuts.append(len(rows))
    return rows, cuts
