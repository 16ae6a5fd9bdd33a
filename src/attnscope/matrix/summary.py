"""Every statistic of every row and column at once, from one walk in which each cell is scored once.

Reading a statistic off the fused kernel costs one or two calls each. Here blocks that fit the processor's cache are
scored, and while they are there everything is summed from them: sums over rows of entropy, squares and distance, sums
over columns for what keys receive, and the two together for the picture. In: a source of weights. Out: (batch, heads,
...) in fp32, or fp64 for fp64. It does not know what the statistics are for. Memory: the results, two blocks, and one
line over the keys for each bin of rows that a block meets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.attention.blocks import ColumnBlock, iter_blocks
from attnscope.attention.cells import allowed_cells, fold_query_groups
from attnscope.attention.regions import Region, band, crop_rows
from attnscope.attention.scores import Cells
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.pairings import Matching, Pairing
from attnscope.matrix.pooling import audience, bin_of, visible
from attnscope.matrix.schedule import Schedule, ranges
from attnscope.matrix.statistics import Weights, ensure_lse

BLOCK_CELLS = 2**19  # of all heads that are walked together: two such blocks fit the caches of two cores
HEAD_CELLS = 2**15  # with fewer cells a head, a block's products are too small to be fast
LOCAL_DISTANCE = 8  # tokens on either side that are the neighbourhood of a token
EXP_SLACK = 1.001  # exp of the least logarithm, with its rounding
ALIGNED = 16  # numbers that the widest registers hold


class Summary(NamedTuple):
    """Result of `AttentionMatrix.summary`. Rows without keys have 0 everywhere."""

    entropy: Tensor  #: Shannon entropy of each row in nats, (..., queries)
    effective_keys: Tensor  #: 1 / sum of weights^2 of each row, (..., queries)
    received: Tensor  #: column sums: the attention that each key receives, (..., keys)
    mean_distance: Tensor  #: mean of query position - key position of each row, (..., queries)
    mass: Tensor  #: row sums: 1 unless a sink takes a part, (..., queries)
    mean_abs_distance: Tensor  #: mean of |query position - key position| of each row, (..., queries)
    local_weight: Tensor  #: weight on positions at most LOCAL_DISTANCE away, (..., queries)
    self_weight: Tensor  #: weight on the position of the query, 0 without such a key, (..., queries)
    previous_weight: Tensor  #: weight on the position before the query, (..., queries)
    first_weight: Tensor  #: weight on key 0, (..., queries)
    visible_keys: Tensor  #: number of keys that the mask allows each query, (..., queries)
    visible_queries: Tensor  #: number of queries that the mask allows each key, (..., keys)
    matched_weight: Tensor  #: weight on keys with the id of the query, (..., pairings, queries)
    num_matches: Tensor  #: number of such keys that the mask allows, (..., pairings, queries)
    bin_sums: Tensor  #: sum of the weights of each bin, (..., rows, columns)
    visible_cells: Tensor  #: number of cells that the mask allows in each bin, (..., rows, columns)

    @property
    def density(self) -> Tensor:
        """The mean weight of the allowed cells of each bin, as by `pool`, (..., rows, columns)."""
        return self.bin_sums / self.visible_cells.clamp(min=1)


ADDED = ("received", "visible_queries", "bin_sums", "visible_cells")
"""What has a number for each key or bin, to which all rows add; everything else has one for each row."""


def concat_rows(parts: Sequence[Summary], keys: int) -> Summary:
    """The summaries of rows that stand below each other, over the same bins, as one.

    The first parts may have been made when there were fewer keys.
    """
    found = {}
    for name in Summary._fields:
        each = [getattr(part, name) for part in parts]
        heads = each[0].shape[1]
        if all(one.stride(1) == 0 for one in each):  # what is the same for all heads stays so, and is held once
            each = [one[:, :1] for one in each]
        if name in ("received", "visible_queries"):
            each = [functional.pad(one, (0, keys - one.shape[-1])) for one in each]  # there were fewer keys then
        together = torch.stack(each).sum(0) if name in ADDED else torch.cat(each, -1)
        found[name] = together.expand(-1, heads, *together.shape[2:])
    return Summary(**found)


def summarize(
    source: Weights,
    row_edges: Sequence[int],
    column_edges: Sequence[int],
    schedule: Schedule,
    pairings: Sequence[Pairing] = (),
) -> Summary:
    """All statistics, with bins given by their edges; equal edges make an empty bin, which has 0."""
    first, second, third = schedule.split(3)
    seen = _Seen(source, row_edges, column_edges, first)
    ensure_lse(source, second)
    queries, keys = source.sizes[2:]
    bins = _Bins(bin_of(row_edges, queries, source.device), bin_of(column_edges, keys, source.device))
    running = _nothing_yet(source, len(row_edges) - 1, len(column_edges) - 1)
    matching = Matching.over(source, pairings)
    pieces = list(_pieces(source))
    for piece, part in zip(pieces, third.split(max(len(pieces), 1)), strict=False):
        where = piece.batch, piece.heads
        _Walk(piece, bins, running.of(*where), matching.of(*where), part).run()
    if isinstance(source, LazyWeights):
        running.rows.entropy.clamp_(min=0.0)  # a weight of 1 may come out a rounding above it
    return running.finished(seen, matching)


class _Seen:
    """What the mask allows: cells of bins, of rows and of columns."""

    def __init__(
        self, source: Weights, row_edges: Sequence[int], column_edges: Sequence[int], schedule: Schedule
    ) -> None:
        queries, keys = source.sizes[2:]
        first, second, third = schedule.split(3)
        self.cells = visible(source, row_edges, column_edges, first)
        self.visible_keys = visible(source, range(queries + 1), [0, keys], second).squeeze(-1)
        self.visible_queries = audience(source, third)


class _Bins(NamedTuple):
    """The bin of each row and of each column."""

    of_row: Tensor
    of_column: Tensor


class _Rowwise(NamedTuple):
    """Sums over the keys of each row, (batch, heads, rows)."""

    entropy: Tensor
    squares: Tensor
    mass: Tensor
    away: Tensor  # weight * distance
    apart: Tensor  # weight * distance on either side
    near: Tensor
    own: Tensor
    previous: Tensor
    first: Tensor


class _Running(NamedTuple):
    """All sums as far as the walk has come."""

    rows: _Rowwise
    received: Tensor
    sums: Tensor

    def of(self, batch: slice, heads: slice) -> _Running:
        """The sums of some batch rows and heads, as views."""
        rows = _Rowwise(*(total[batch, heads] for total in self.rows))
        return _Running(rows, self.received[batch, heads], self.sums[batch, heads])

    def finished(self, seen: _Seen, matching: Matching) -> Summary:
        """The statistics that these sums make; a row without keys has 0 everywhere."""
        rows = self.rows
        some = rows.mass.masked_fill(rows.mass == 0, 1.0)
        return Summary(
            entropy=rows.entropy,
            effective_keys=rows.squares.reciprocal().masked_fill_(rows.squares == 0, 0.0),
            received=self.received,
            mean_distance=rows.away / some,
            mass=rows.mass,
            mean_abs_distance=rows.apart / some,
            local_weight=rows.near,
            self_weight=rows.own,
            previous_weight=rows.previous,
            first_weight=rows.first,
            visible_keys=seen.visible_keys,
            visible_queries=seen.visible_queries,
            matched_weight=matching.weights,
            num_matches=matching.counts,
            bin_sums=self.sums,
            visible_cells=seen.cells,
        )


def _nothing_yet(source: Weights, rows: int, columns: int) -> _Running:
    batch, heads, queries, keys = source.sizes

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(batch, heads, *shape, dtype=source.dtype, device=source.device)

    return _Running(_Rowwise(*(zeros(queries) for _ in _Rowwise._fields)), zeros(keys), zeros(rows, columns))


class _Piece(NamedTuple):
    """Some batch rows and heads, few enough for one block of all of them, and the regions that they share."""

    source: Weights
    batch: slice
    heads: slice
    regions: Sequence[Region]
    exact: bool  # the regions are all of the mask


def _pieces(source: Weights) -> Iterator[_Piece]:
    batch, heads, queries, keys = source.sizes
    if not math.prod(source.sizes):
        return
    regions, exact = (band(queries, keys, None, None),), isinstance(source, DenseWeights)
    if isinstance(source, LazyWeights) and source.lowered is not None:
        regions, exact = source.lowered.regions, source.lowered.key_mask is None
    most = max(1, BLOCK_CELLS // min(queries * keys, HEAD_CELLS))
    if batch * heads <= most and len(set(regions)) == 1:
        yield _Piece(source, slice(0, batch), slice(0, heads), regions[0], exact)
        return
    group = (
        heads // source.rule.num_kv_heads if isinstance(source, LazyWeights) else 1
    )  # these share a key and stay together
    at_once = -(-heads // -(-heads // most))  # in parts as equal as can be
    for row in range(batch):
        for some in ranges(heads, -(-at_once // group) * group):
            where = slice(row, row + 1), slice(some.start, some.stop)
            yield _Piece(source.narrow(*where), *where, regions[row if len(regions) > 1 else 0], exact)


def _block_shape(source: Weights, row_bins: int, budget: int) -> tuple[int, int]:
    """Rows and columns of a block: four times as wide as high, and within the budget with all that goes with it."""
    batch, heads, queries, keys = source.sizes
    each, itemsize = batch * heads, source.dtype.itemsize
    cells = max(1, min(BLOCK_CELLS, budget // (8 * itemsize)) // each)
    high = min(_aligned(math.isqrt(cells // 4) + ALIGNED // 2), queries)
    lines = max(1, budget // (4 * each * keys * itemsize))  # over all keys, one for each bin a block meets
    high = high if row_bins <= lines else min(high, lines)
    return high, min(_aligned(cells // high), keys)


def _aligned(size: int) -> int:
    return size // ALIGNED * ALIGNED if size > ALIGNED else max(size, 1)


class _Walk:
    """The walk over one piece: rows in steps, and beside them the blocks of columns that hold an allowed cell."""

    def __init__(self, piece: _Piece, bins: _Bins, running: _Running, matching: Matching, schedule: Schedule) -> None:
        self.piece, self.bins, self.running, self.matching, self.schedule = piece, bins, running, matching, schedule
        source = piece.source
        batch, heads, queries, keys = source.sizes
        self.high, self.wide = _block_shape(source, running.sums.shape[-2], schedule.max_bytes)
        self.offset = keys - queries
        cells = batch * heads * self.high * self.wide
        self.buffers = torch.zeros(2, cells, dtype=source.dtype, device=source.device)  # made once, used by all blocks
        self.ramp = torch.arange(self.wide, dtype=source.dtype, device=source.device)

    def run(self) -> None:
        """Add everything up."""
        for step in self.schedule.track(ranges(self.piece.source.sizes.queries, self.high)):
            for rows in iter_blocks(crop_rows(self.piece.regions, step.start, step.stop), len(step), self.wide):
                self._add_rows(step.start + rows.top, step.start + rows.bottom, rows.columns)

    def _add_rows(self, top: int, bottom: int, columns: Sequence[ColumnBlock]) -> None:
        source, (batch, heads) = self.piece.source, self.piece.source.sizes[:2]
        reader = _ScoredRows(source, top, bottom) if isinstance(source, LazyWeights) else _HeldRows(source, top, bottom)
        here = _Here.of(self.running.rows, top, bottom, self.offset)
        matching = self.matching.at_rows(top, bottom, source)
        counting = any(len(pairing.counts) for pairing in matching)
        bins = self.bins.of_row[top:bottom]
        low, high = int(bins[0]), int(bins[-1]) + 1
        inside = (bins == torch.arange(low, high, device=source.device)[:, None]).to(source.dtype)
        inside = inside.expand(batch * heads, -1, -1)
        left, right = columns[0].left, columns[-1].right
        lines = torch.zeros(batch * heads, high - low, right - left, dtype=source.dtype, device=source.device)
        for some in columns:
            self.schedule.check()
            shape = batch, heads, bottom - top, some.right - some.left
            into = self.buffers[:, : math.prod(shape)].view(2, *shape)
            whole = some.is_full and self.piece.exact
            log_weights, weights = reader.read(some.left, some.right, into, whole=whole)
            lines[:, :, some.left - left : some.right - left] = inside @ weights.flatten(0, 1)
            here.add(some.left, log_weights, weights, self.ramp)
            seen = reader.seen(some.left, some.right, whole=whole) if counting else None
            for pairing in matching:
                pairing.add(some.left, weights, seen)
        lines = lines.view(batch, heads, high - low, right - left)
        self.running.received[:, :, left:right] += lines.sum(2)
        where = self.bins.of_column[left:right].expand_as(lines)
        self.running.sums[:, :, low:high].scatter_add_(-1, where, lines)


class _Here(NamedTuple):
    """The sums of some rows, and the positions that these rows have among the keys."""

    totals: _Rowwise
    first: int
    positions: Tensor

    @staticmethod
    def of(rows: _Rowwise, top: int, bottom: int, offset: int) -> _Here:
        """Rows [top, bottom), whose sums are views."""
        like = rows.mass
        positions = torch.arange(top + offset, bottom + offset, dtype=like.dtype, device=like.device)
        return _Here(_Rowwise(*(total[:, :, top:bottom] for total in rows)), top + offset, positions)

    def add(self, left: int, log_weights: Tensor, weights: Tensor, ramp: Tensor) -> None:
        """Add the weights of columns from `left` on; the logarithms are used up."""
        totals = self.totals
        norm, mass = torch.linalg.vector_norm(weights, dim=-1), weights.sum(-1)
        totals.squares.addcmul_(norm, norm)
        totals.mass.add_(mass)
        totals.entropy.sub_(log_weights.mul_(weights).sum(-1))
        self._add_distance(left, mass, weights, ramp, spare=log_weights)
        _copy_diagonal(totals.own, weights, self.first - left)
        _copy_diagonal(totals.previous, weights, self.first - left - 1)
        if left == 0:
            totals.first.copy_(weights[..., 0])

    def _add_distance(self, left: int, mass: Tensor, weights: Tensor, ramp: Tensor, spare: Tensor) -> None:
        """Add weight * distance, in two parts: from the row to the near edge of the block, and from there to the key.

        Beside the diagonal both have one sign. Across it they would cancel, so distances are taken cell by cell.
        """
        (high, wide), away, apart = weights.shape[-2:], self.totals.away, self.totals.apart
        last = left + wide - 1
        if last <= self.first:
            inner = torch.mv(weights.view(-1, wide), ramp[:wide].flip(0)).view_as(mass)
            here = inner.addcmul_(mass, self.positions - last)
            away.add_(here)
            apart.add_(here)
        elif left >= self.first + high - 1:
            inner = torch.mv(weights.view(-1, wide), ramp[:wide]).view_as(mass)
            here = inner.addcmul_(mass, left - self.positions)
            away.sub_(here)
            apart.add_(here)
        else:
            distance = self.positions[:, None] - left - ramp[:wide]
            away.add_(torch.mul(weights, distance, out=spare).sum(-1))
            apart.add_(torch.mul(weights, distance.abs(), out=spare).sum(-1))
        if last >= self.first - LOCAL_DISTANCE and left <= self.first + high - 1 + LOCAL_DISTANCE:
            distance = self.positions[:, None] - left - ramp[:wide]
            self.totals.near.add_(torch.mul(weights, distance.abs() <= LOCAL_DISTANCE, out=spare).sum(-1))


class _ScoredRows:
    """Some rows of scores, ready to meet their keys block by block."""

    def __init__(self, source: LazyWeights, top: int, bottom: int) -> None:
        self.source = source
        self.rows = torch.arange(top, bottom, device=source.device)[:, None]
        query = source.query[:, :, top:bottom].to(source.dtype) * source.rule.scale
        self.query = fold_query_groups(query, source.rule).flatten(0, 1)
        assert source.cached_lse is not None
        lse = source.cached_lse[:, :, top:bottom, None]
        self.lse = lse.masked_fill(lse == -math.inf, 0.0)
        self.least = _least(source.dtype)

    def seen(self, left: int, right: int, *, whole: bool) -> Tensor | None:
        """Which cells of columns [left, right) the mask allows, for all heads or for each; None for all cells."""
        if whole:
            return None
        at = torch.arange(left, right, device=self.source.device)[None, :]
        return allowed_cells(self.source.rule, Cells(self.rows, at, self.source.sizes))

    def read(self, left: int, right: int, into: Tensor, *, whole: bool) -> tuple[Tensor, Tensor]:
        """Logarithms of weights and weights of columns [left, right), written to the two blocks of `into`.

        `whole` says that the mask allows all of them; steps of a score may leave their own tensor as the logarithms.
        """
        source, rule = self.source, self.source.rule
        scores, weights = into
        key = source.key[:, :, left:right].to(source.dtype).flatten(0, 1)
        torch.bmm(self.query, key.mT, out=scores.view(len(key), -1, right - left))
        at = torch.arange(left, right, device=source.device)[None, :] if rule.steps or not whole else self.rows
        cells = Cells(self.rows, at, source.sizes)
        for step in rule.steps:
            scores = step.apply(scores, cells)
        scores.sub_(self.lse)
        if not whole:
            scores.masked_fill_(~allowed_cells(rule, cells), -math.inf)
        scores.clamp_(min=self.least)
        return scores, torch.threshold_(torch.exp(scores, out=weights), EXP_SLACK * math.exp(self.least), 0.0)


class _HeldRows:
    """Some rows of weights that are already there."""

    def __init__(self, source: DenseWeights, top: int, bottom: int) -> None:
        self.weights, self.least = source.weights[:, :, top:bottom], _least(source.dtype)

    def seen(self, left: int, right: int, *, whole: bool) -> Tensor:
        """As that of scored rows; zeros are forbidden, whatever a mask has said."""
        return self.weights[..., left:right] > 0

    def read(self, left: int, right: int, into: Tensor, *, whole: bool) -> tuple[Tensor, Tensor]:
        """As that of scored rows."""
        weights = into[1].copy_(self.weights[..., left:right])
        return torch.log(weights, out=into[0]).clamp_(min=self.least), weights


def _least(dtype: torch.dtype) -> float:
    """The logarithm of the smallest weight that counts, about 1e-19 in fp32: what is less is 0.

    Its square is the smallest normal number. Beyond that processors and torch's exp take up to a hundred times longer,
    and sharp heads and masks have millions of such cells; and a finite logarithm times 0 is 0.
    """
    return math.log(torch.finfo(dtype).tiny) / 2


def _copy_diagonal(target: Tensor, weights: Tensor, offset: int) -> None:
    """Copy the weights of cells with column - row = offset, counted in the block, to their rows; there may be none."""
    high, wide = weights.shape[-2:]
    if -high < offset < wide:
        found = weights.diagonal(offset, -2, -1)
        start = max(0, -offset)
        target[..., start : start + found.shape[-1]] = found
