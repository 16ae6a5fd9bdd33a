"""The blockwise pass: computes weights in blocks that fit the processor's cache and gives each block to reducers.

In: lazily computed or dense weights, and which rows and columns to read. Out: nothing; reducers keep their results.
Blocks without an allowed cell are skipped, and each score is computed once. Memory: two blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attnscope.attention.block_sizes import block_sizes
from attnscope.attention.cells import allowed_cells, fold_query_groups
from attnscope.attention.regions import Region, area, band, intersection, rectangle
from attnscope.attention.scores import Cells
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.positions import Positions
from attnscope.matrix.schedule import Schedule, ranges

Weights = LazyWeights | DenseWeights

ALIGNMENT = 16  # numbers in the widest registers
EXP_SLACK = 1.001  # rounding of exp


class Block(NamedTuple):
    """Weights of some heads, rows and columns, (batch, heads, rows, columns), in buffers that the next block reuses."""

    batch: slice
    heads: slice
    rows: slice  # among the rows of the pass
    columns: slice  # positions of the keys
    positions: Positions  # of the rows
    source: Weights  # of these heads
    log_weights: Tensor  # finite; a reducer may overwrite it
    weights: Tensor
    visible: Tensor | None  # the cells that the mask allows, to be broadcast; None for all


class Reducer(Protocol):
    """Collects a result from the blocks of a pass."""

    def add(self, block: Block) -> None:
        """Add a block to the result."""


def reduce_blocks(
    source: Weights,
    reducers: Sequence[Reducer],
    schedule: Schedule,
    *,
    rows: Positions | None = None,
    columns: range | None = None,
    align: tuple[int, int] = (1, 1),
    min_log_weight: float | None = None,
) -> None:
    """Give every block of some rows and columns to each reducer.

    Args:
        source: the weights.
        reducers: called with each block in turn; one that overwrites `log_weights` comes last.
        schedule: memory limit, progress and cancellation.
        rows: increasing positions of queries; all by default.
        columns: positions of keys; all by default.
        align: blocks start at multiples of these numbers of rows and columns where they are small enough.
        min_log_weight: smaller weights count as 0; by default those that are not normal numbers.
    """
    queries, keys = source.sizes[2:]
    rows = Positions(range(queries), source.device) if rows is None else rows
    columns = range(keys) if columns is None else columns
    first, second = schedule.split(2)
    lse = _lse_of_rows(source, rows, columns, first)
    least = math.log(torch.finfo(source.dtype).tiny) + 1 if min_log_weight is None else min_log_weight
    groups = list(_head_groups(source, len(rows), len(columns)))
    for group, part in zip(groups, second.split(max(len(groups), 1)), strict=False):
        shape = _block_shape(group.source, len(rows), len(columns), align, schedule.limit(source.device))
        own_lse = None if lse is None else lse[group.batch, group.heads]
        group.run(reducers, rows, columns, own_lse, shape, align[1], least, part)


def _lse_of_rows(source: Weights, rows: Positions, columns: range, schedule: Schedule) -> Tensor | None:
    """The lse of these rows, (batch, heads, rows); None for dense weights and where no cell is allowed."""
    if isinstance(source, DenseWeights) or not _has_cells(source, rows, columns):
        return None
    if source.cached_lse is None and 4 * len(rows) > source.sizes.queries:
        source.lse(schedule)  # for many rows, it is worth caching the lse of all
    if source.cached_lse is not None:
        return source.cached_lse[:, :, rows.index]
    steps = schedule.steps(len(rows), source.cells_per_row, 2 * source.bytes_per_pair, source.device)
    return torch.cat([source.lse_of(rows[step.start : step.stop]) for step in schedule.track(steps)], 2)


def _has_cells(source: LazyWeights, rows: Positions, columns: range) -> bool:
    """Whether the mask may allow a cell of these rows and columns."""
    if source.region_mask is None:
        return True
    if not len(rows) or not columns:
        return False
    block = rectangle(rows.start, rows.stop, columns.start, columns.stop)
    return any(intersection(found, [block]) for found in source.region_mask.regions)


def _head_groups(source: Weights, rows: int, columns: int) -> Iterator[_HeadGroup]:
    """Split batch rows and heads into groups that share their regions and fit one block."""
    batch, heads, queries, keys = source.sizes
    if not batch * heads * rows * columns:
        return
    regions, exact = (band(queries, keys, None, None),), isinstance(source, DenseWeights)
    if isinstance(source, LazyWeights) and source.region_mask is not None:
        regions, exact = source.region_mask.regions, source.region_mask.key_mask is None
    sizes = block_sizes(source.device)
    most = max(1, sizes.pass_cells // min(rows * columns, sizes.head_cells))
    if batch * heads <= most and len(set(regions)) == 1:
        yield _HeadGroup(source, slice(0, batch), slice(0, heads), regions[0], exact)
        return
    group = heads // source.spec.num_kv_heads if isinstance(source, LazyWeights) else 1  # these share a key
    at_once = -(-heads // -(-heads // most))  # groups of about equal size
    for row in range(batch):
        for some in ranges(heads, -(-at_once // group) * group):
            where = slice(row, row + 1), slice(some.start, some.stop)
            yield _HeadGroup(source.narrow(*where), *where, regions[row if len(regions) > 1 else 0], exact)


class _HeadGroup(NamedTuple):
    """Batch rows and heads that are computed together."""

    source: Weights
    batch: slice
    heads: slice
    regions: Sequence[Region]
    exact: bool  # the regions are the whole mask

    def run(
        self,
        reducers: Sequence[Reducer],
        rows: Positions,
        columns: range,
        lse: Tensor | None,
        shape: tuple[int, int],
        align: int,
        min_log_weight: float,
        schedule: Schedule,
    ) -> None:
        """Read all blocks."""
        source, (batch, heads), (high, wide) = self.source, self.source.sizes[:2], shape
        buffers = torch.zeros(2, batch * heads * high * wide, dtype=source.dtype, device=source.device)
        for step in schedule.track(ranges(len(rows), high)):
            index = slice(step.start, step.stop)
            here, reader = rows[index], None
            for left, right, whole in self._column_blocks(here, columns, wide, align):
                schedule.check()
                reader = reader or _read_rows(source, here, None if lse is None else lse[:, :, index], min_log_weight)
                size = batch, heads, len(here), right - left
                into = buffers[:, : math.prod(size)].view(2, *size)
                cells = reader.read(left, right, into, whole=whole and self.exact)
                block = Block(self.batch, self.heads, index, slice(left, right), here, source, *cells)
                for reducer in reducers:
                    reducer.add(block)

    def _column_blocks(self, rows: Positions, columns: range, wide: int, align: int) -> Iterator[tuple[int, int, bool]]:
        """Blocks [left, right) with an allowed cell of these rows, and whether all of their cells are allowed."""
        top, bottom = rows.start, rows.stop
        near = [region for region in self.regions if region.top < bottom and region.bottom > top]
        near = intersection(near, [rectangle(top, bottom, columns.start, columns.stop)])
        if not near:
            return
        align = align if align <= wide else 1
        first, last = min(region.left for region in near), max(region.right for region in near)
        first -= (first - columns.start) % align
        last = min(last + (columns.start - last) % align, columns.stop)
        for left in range(first, last, wide):
            block = rectangle(top, bottom, left, min(left + wide, last))
            cells = area(intersection(near, [block]))
            if cells:
                yield left, block.right, cells == block.area


def _block_shape(source: Weights, rows: int, columns: int, align: tuple[int, int], max_bytes: int) -> tuple[int, int]:
    """Rows and columns of a block: four times as many columns as rows, within the memory limit."""
    most = min(block_sizes(source.device).pass_cells, max_bytes // (8 * source.dtype.itemsize))
    cells = max(1, most // (source.sizes.batch * source.sizes.heads))
    high = min(_round_down(math.isqrt(cells // 4) + ALIGNMENT // 2, align[0]), rows)
    wide = min(_round_down(cells // high, align[1]), columns)
    return min(max(high, _round_down(cells // wide, align[0])), rows), wide


def _round_down(size: int, align: int) -> int:
    """The largest multiple of `align`, or else of ALIGNMENT, that is not above `size`."""
    for unit in (align, ALIGNMENT):
        if size >= unit > 1:
            return size // unit * unit
    return max(size, 1)


class _Cells(NamedTuple):
    """The last fields of a `Block`."""

    log_weights: Tensor
    weights: Tensor
    visible: Tensor | None


def _read_rows(source: Weights, rows: Positions, lse: Tensor | None, min_log_weight: float) -> _LazyRows | _DenseRows:
    if isinstance(source, DenseWeights):
        return _DenseRows(source, rows, min_log_weight)
    assert lse is not None
    return _LazyRows(source, rows, lse, min_log_weight)


class _LazyRows:
    """Computes the weights of some rows from query and key."""

    def __init__(self, source: LazyWeights, rows: Positions, lse: Tensor, min_log_weight: float) -> None:
        self.source, self.rows, self.min_log_weight = source, rows, min_log_weight
        query = source.query[:, :, rows.index].to(source.dtype) * source.spec.scale
        self.query = fold_query_groups(query, source.spec).flatten(0, 1)
        self.lse = lse.masked_fill(lse == -math.inf, 0.0)[..., None]

    def read(self, left: int, right: int, into: Tensor, *, whole: bool) -> _Cells:
        """The cells of columns [left, right), in the two buffers of `into`.

        Logarithms are raised to the smallest that counts: below it exp takes up to a hundred times longer, and a finite
        logarithm times 0 is 0. Score steps may return a tensor of their own for the logarithms.
        """
        source, spec = self.source, self.source.spec
        logs, weights = into
        key = source.key[:, :, left:right].to(source.dtype).flatten(0, 1)
        torch.bmm(self.query, key.mT, out=logs.view(len(key), -1, right - left))
        visible = None
        if spec.steps or not whole:
            columns = torch.arange(left, right, device=source.device)
            cells = Cells(self.rows.tensor[:, None], columns[None, :], source.sizes)
            for step in spec.steps:
                logs = step.apply(logs, cells)
            visible = None if whole else allowed_cells(spec, cells)
        logs.sub_(self.lse)
        if visible is not None:
            logs.masked_fill_(~visible, -math.inf)
        torch.exp(logs.clamp_(min=self.min_log_weight), out=weights)
        return _Cells(logs, torch.threshold_(weights, EXP_SLACK * math.exp(self.min_log_weight), 0.0), visible)


class _DenseRows:
    """Reads some rows of dense weights; zeros count as masked."""

    def __init__(self, source: DenseWeights, rows: Positions, min_log_weight: float) -> None:
        self.weights, self.rows, self.min_log_weight = source.weights, rows.index, min_log_weight

    def read(self, left: int, right: int, into: Tensor, *, whole: bool) -> _Cells:
        """The cells of columns [left, right), in the two buffers of `into`."""
        logs, weights = into
        weights.copy_(self.weights[:, :, self.rows, left:right])
        return _Cells(torch.log(weights, out=logs).clamp_(min=self.min_log_weight), weights, weights > 0)
