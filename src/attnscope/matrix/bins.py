"""Sum, count and maximum of the cells between any edges of rows and columns, in one pass.

Edges need not start at 0 nor end with the matrix. Where every position is an edge, bins are single cells. Memory: the
results and two blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from attnscope.matrix.blocks import Weights, reduce_blocks
from attnscope.matrix.positions import Positions
from attnscope.matrix.reducers import BinAxis, BinCounts, BinMax, BinSums, RowSums, block_entropy
from attnscope.matrix.sampling import spaced_rows
from attnscope.matrix.schedule import Schedule


class Bins(NamedTuple):
    """Result of `AttentionMatrix.bins`."""

    sums: Tensor  #: sum of the weights of each bin, (..., row bins, column bins)
    visible_cells: Tensor  #: number of cells that the mask allows, (..., row bins, column bins)
    max: Tensor  #: largest weight, 0 without a cell, (..., row bins, column bins)
    entropy: Tensor  #: sum of -w log w over the columns of each row that was read, (..., rows)
    received: Tensor  #: sum of each column over the rows that were read, (..., columns)


def find_bins(
    source: Weights,
    row_edges: Sequence[int],
    column_edges: Sequence[int],
    rows_per_bin: int | None,
    schedule: Schedule,
) -> Bins:
    """The bins between these edges, (batch, heads, ...), from all rows or from `rows_per_bin` rows of each bin."""
    rows, cuts = _select_rows(_check_edges(row_edges, source.sizes.queries, "row"), rows_per_bin)
    edges = _check_edges(column_edges, source.sizes.keys, "column")
    axes = BinAxis(cuts), BinAxis(edges)
    sums, counts, maximum = BinSums(source, *axes), BinCounts(source, *axes), BinMax(source, *axes)
    entropy = RowSums(source, len(rows), block_entropy)
    reduce_blocks(
        source,
        [sums, counts, maximum, entropy],
        schedule,
        rows=Positions(rows, source.device),
        columns=range(edges[0], edges[-1]),
        align=(axes[0].align, axes[1].align),
    )
    return Bins(sums.result, counts.result, maximum.result, entropy.result, sums.column_sums)


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
