"""Any part of a matrix gathered into bins, at any scale, from one walk in which each cell is scored once.

In: edges of bins of rows and of columns, which need not begin at 0 nor end with the matrix. Where every position is an
edge, bins are the cells themselves. Out: the sum, the count and the maximum of the cells of each bin, and what each row
and column has between the outer edges. Does not know: pictures and zoom levels. Memory: the results, and three
blocks that fit the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.cells import allowed_cells
from attnscope.attention.regions import Region, area, band, intersection, rectangle
from attnscope.attention.scores import Cells
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.sampling import spaced_rows
from attnscope.matrix.schedule import Schedule, ranges
from attnscope.matrix.statistics import Weights

ROWS, COLUMNS = 512, 2048  # of a block: larger ones leave the processor's cache, smaller ones are more calls


class Bins(NamedTuple):
    """Result of `AttentionMatrix.bins`."""

    sums: Tensor  #: sum of the weights of each bin, (..., row bins, column bins)
    visible_cells: Tensor  #: number of cells that the mask allows, (..., row bins, column bins)
    max: Tensor  #: largest weight, 0 without a cell, (..., row bins, column bins)
    entropy: Tensor  #: sum of -w log w over the columns of each row that was read, (..., rows)
    received: Tensor  #: sum of each column over the rows that were read, (..., columns)


class Stretch(NamedTuple):
    """Positions [start, stop) of an axis: `many` bins of equal width, or a part of one, beginning with bin `first`."""

    start: int
    stop: int
    first: int
    many: int

    @property
    def bins(self) -> slice:
        """Which bins."""
        return slice(self.first, self.first + self.many)


def find_bins(
    source: Weights, row_edges: Sequence[int], column_edges: Sequence[int], each: int | None, schedule: Schedule
) -> Bins:
    """(batch, heads, ...); of each bin of rows, all are looked at, or `each` evenly spread ones."""
    batch, heads, queries, keys = source.sizes
    picked, lines = _picked(_checked(row_edges, queries, "row"), each, source.device)
    columns = _checked(column_edges, keys, "column")
    shape, like = (batch, heads, len(lines) - 1, len(columns) - 1), {"dtype": source.dtype, "device": source.device}
    found = Bins(
        torch.zeros(shape, **like),
        torch.zeros(shape, dtype=torch.long, device=source.device),
        torch.zeros(shape, **like),
        torch.zeros(batch, heads, len(picked), **like),
        torch.zeros(batch, heads, columns[-1] - columns[0], **like),
    )
    alone = batch * heads == 1
    pieces = [(row, head) for row in range(batch) for head in range(heads)]
    first, second = schedule.split(2)
    lse = _lse(source, picked, columns, first)
    for (row, head), part in zip(pieces, second.split(max(len(pieces), 1)), strict=False):
        one = source if alone else source.narrow(slice(row, row + 1), slice(head, head + 1))
        own = None if lse is None else lse[row, head]
        _Walk(one, own, Bins(*(total[row, head] for total in found))).run(picked, lines, columns, part)
    return found


def stretches(edges: Sequence[int], most: int) -> list[Stretch]:
    """An axis in stretches of at most this length, each of whole bins of one width or of a part of one bin.

    >>> stretches([0, 2, 4, 6, 7], 4)
    [Stretch(start=0, stop=4, first=0, many=2), Stretch(start=4, stop=6, first=2, many=1), Stretch(start=6, stop=7, \
first=3, many=1)]
    """
    found = []
    widths = groupby(enumerate(pairwise(edges)), key=lambda one: one[1][1] - one[1][0])
    for width, run in widths:
        (first, (start, _)), *more = run
        if width > most:
            for at, (left, right) in [(first, (start, start + width)), *more]:
                found += [Stretch(left + part.start, left + part.stop, at, 1) for part in ranges(right - left, most)]
        else:
            for part in ranges(1 + len(more), most // width):
                left = start + part.start * width
                found.append(Stretch(left, left + len(part) * width, first + part.start, len(part)))
    return found


def _checked(edges: Sequence[int], length: int, name: str) -> list[int]:
    found = [int(edge) for edge in edges]
    rising = all(low < high for low, high in pairwise(found))
    if len(found) < 2 or not rising or found[0] < 0 or found[-1] > length:
        shown = f"{len(found)} of them, {found[0]} ... {found[-1]}" if found else "none"
        raise ValueError(f"bins: expected at least two increasing {name} edges between 0 and {length}, got {shown}")
    return found


def _picked(edges: list[int], each: int | None, device: torch.device) -> tuple[Tensor, list[int]]:
    """The rows to look at, and where among them the bins begin and end."""
    if each is None:
        return torch.arange(edges[0], edges[-1], device=device), [edge - edges[0] for edge in edges]
    if each < 1:
        raise ValueError(f"bins: expected rows_per_bin of at least 1, got {each}")
    rows, lines = [], [0]
    for start, stop in pairwise(edges):
        rows += spaced_rows(start, stop, each)
        lines.append(len(rows))
    return torch.tensor(rows, device=device), lines


def _lse(source: Weights, rows: Tensor, columns: Sequence[int], schedule: Schedule) -> Tensor | None:
    """The normalisers of these rows, (batch, heads, rows); None where they are not needed."""
    if isinstance(source, DenseWeights) or not _meet(source, rows, columns):
        return None
    if source.cached_lse is None and 4 * len(rows) > source.sizes.queries:
        source.lse(schedule)  # where many rows are asked for, all normalisers are worth keeping
    if source.cached_lse is not None:
        return source.cached_lse[:, :, rows]
    steps = schedule.steps(len(rows), source.cells_per_row, 2 * source.bytes_per_pair)
    return torch.cat([source.lse_of(rows[step.start : step.stop]) for step in schedule.track(steps)], 2)


def _meet(source: LazyWeights, rows: Tensor, columns: Sequence[int]) -> bool:
    """Whether the mask may allow one of these rows one of these columns."""
    if source.lowered is None:
        return True
    block = rectangle(int(rows[0]), int(rows[-1]) + 1, columns[0], columns[-1])
    return any(intersection(found, [block]) for found in source.lowered.regions)


class _Walk:
    """The walk over some rows and columns of one head."""

    def __init__(self, source: Weights, lse: Tensor | None, found: Bins) -> None:
        self.source, self.found = source, found
        self.lse = None if lse is None else lse.masked_fill(lse == -math.inf, 0.0)[:, None]
        queries, keys = source.sizes[2:]
        self.regions: Sequence[Region] = band(queries, keys, None, None)
        self.exact = False  # whether the regions are all of the mask
        if isinstance(source, LazyWeights) and source.lowered is not None:
            self.regions, self.exact = source.lowered.regions[0], source.lowered.key_mask is None
        self.least = math.log(torch.finfo(source.dtype).tiny) + 1  # exp is still fast there

    def run(self, rows: Tensor, lines: Sequence[int], columns: Sequence[int], schedule: Schedule) -> None:
        """Add everything up."""
        across = stretches(columns, COLUMNS)
        most = min(ROWS, schedule.max_bytes // (12 * COLUMNS * self.source.dtype.itemsize))
        down = stretches(lines, max(most, 1))
        size = max(part.stop - part.start for part in down) * max(part.stop - part.start for part in across)
        buffers = torch.empty(3, size, dtype=self.source.dtype, device=self.source.device)
        steps = {range(part.start, part.stop): part for part in down}
        for step in schedule.track(list(steps)):
            here = rows[step.start : step.stop]
            self._add_rows(steps[step], here, columns[0], across, buffers, schedule)

    def _add_rows(
        self, down: Stretch, rows: Tensor, origin: int, across: Sequence[Stretch], buffers: Tensor, schedule: Schedule
    ) -> None:
        beside = list(self._beside(rows, across))
        if not beside:
            return
        reader = self._reader(rows, down)
        for some, whole in beside:
            schedule.check()
            shape = len(rows), some.stop - some.start
            logs, weights, spare = buffers[:, : math.prod(shape)].view(3, *shape)
            seen = None if whole else reader.seen(some)
            logs = reader.read(some, logs, weights, seen)
            lines = _folded(weights, down.many, torch.sum)
            bins = down.bins, some.bins
            self.found.received[some.start - origin : some.stop - origin] += lines.sum(0)
            self.found.sums[bins] += _folded(lines.mT, some.many, torch.sum).mT
            self.found.visible_cells[bins] += _count(seen, down, some, spare)
            best = self.found.max[bins]
            lines = _folded(weights, down.many, torch.amax)
            torch.maximum(best, _folded(lines.mT, some.many, torch.amax).mT, out=best)
            self.found.entropy[down.start : down.stop] -= logs.mul_(weights).sum(-1)

    def _reader(self, rows: Tensor, down: Stretch) -> _ScoredRows | _HeldRows:
        if isinstance(self.source, DenseWeights):
            return _HeldRows(self.source, rows, self.least)
        assert self.lse is not None
        return _ScoredRows(self.source, rows, self.lse[down.start : down.stop], self.least)

    def _beside(self, rows: Tensor, across: Sequence[Stretch]) -> Iterator[tuple[Stretch, bool]]:
        """The columns that hold an allowed cell of these rows, and whether all of their cells are allowed."""
        top, bottom = int(rows[0]), int(rows[-1]) + 1
        near = [region for region in self.regions if region.top < bottom and region.bottom > top]
        near = intersection(near, [rectangle(top, bottom, across[0].start, across[-1].stop)])
        if not near:
            return
        left, right = min(region.left for region in near), max(region.right for region in near)
        for some in across:
            if some.stop > left and some.start < right:
                block = rectangle(top, bottom, some.start, some.stop)
                cells = area(intersection(near, [block]))
                if cells:
                    yield some, self.exact and cells == block.area


class _ScoredRows:
    """Some rows of scores, ready to meet their keys."""

    def __init__(self, source: LazyWeights, rows: Tensor, lse: Tensor, least: float) -> None:
        self.source, self.rows, self.lse, self.least = source, rows[:, None], lse, least
        self.query = source.query[0, 0, rows].to(source.dtype) * source.rule.scale

    def _cells(self, some: Stretch) -> Cells:
        columns = torch.arange(some.start, some.stop, device=self.source.device)[None, :]
        return Cells(self.rows, columns, self.source.sizes)

    def seen(self, some: Stretch) -> Tensor:
        """Which cells the mask allows, (rows, columns)."""
        found = allowed_cells(self.source.rule, self._cells(some))
        return found.reshape(found.shape[-2:]).expand(len(self.rows), some.stop - some.start)

    def read(self, some: Stretch, logs: Tensor, weights: Tensor, seen: Tensor | None) -> Tensor:
        """Write the weights, and return their logarithms: in `logs`, unless the score has a tensor of its own for them.

        Logarithms below that of the smallest normal number are raised to it: beyond, exp takes up to a hundred times
        longer, and nothing that small can be told from 0 in a sum or a picture.
        """
        torch.mm(self.query, self.source.key[0, 0, some.start : some.stop].to(self.source.dtype).mT, out=logs)
        if self.source.rule.steps:
            scores, cells = logs[None, None], self._cells(some)
            for step in self.source.rule.steps:
                scores = step.apply(scores, cells)
            logs = scores[0, 0]
        logs.sub_(self.lse)
        if seen is None:
            torch.exp(logs.clamp_(min=self.least), out=weights)
        else:
            hidden = ~seen
            torch.exp(logs.masked_fill_(hidden, -math.inf).clamp_(min=self.least), out=weights)
            weights.masked_fill_(hidden, 0.0)
        return logs


class _HeldRows:
    """Some rows of weights that are already there; zeros count as forbidden."""

    def __init__(self, source: DenseWeights, rows: Tensor, least: float) -> None:
        self.weights, self.rows, self.least = source.weights[0, 0], rows, least

    def seen(self, some: Stretch) -> Tensor:
        """As that of scored rows."""
        return self.weights[self.rows, some.start : some.stop] > 0

    def read(self, some: Stretch, logs: Tensor, weights: Tensor, seen: Tensor | None) -> Tensor:
        """As that of scored rows."""
        weights.copy_(self.weights[self.rows, some.start : some.stop])
        return torch.log(weights, out=logs).clamp_(min=self.least)


def _folded(block: Tensor, bins: int, how) -> Tensor:
    """(bins, columns): the rows of each bin as one, by a sum or a maximum."""
    return block if len(block) == bins else how(block.unflatten(0, (bins, -1)), dim=1)


def _count(seen: Tensor | None, down: Stretch, across: Stretch, spare: Tensor) -> int | Tensor:
    """How many cells of each bin are seen, one number where all are; a block is small enough to be counted in fp32."""
    if seen is None:
        return (down.stop - down.start) // down.many * ((across.stop - across.start) // across.many)
    return _folded(_folded(spare.copy_(seen), down.many, torch.sum).mT, across.many, torch.sum).mT.long()
