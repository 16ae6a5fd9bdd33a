"""The statistics of a matrix by the Triton kernels, for CUDA and ROCm devices: one pass over rows, one over columns.

In: query, key and a `KernelPlan`. Out: (batch, heads, ...) in fp32. Heads are computed together as far as memory and
the time between two checks for cancellation allow. The mask reaches the device by one copy, and nothing waits for the
device. Memory: the results, and the statistics of all rows, which are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from attnscope.attention.intervals import Intervals, RowBounds, row_bounds
from attnscope.attention.transfers import to_device
from attnscope.attention.triton import operators
from attnscope.attention.triton.configs import Config
from attnscope.attention.triton.inputs import KernelInputs, NeighbourWeights, RowStatistics
from attnscope.attention.triton.layout import ColumnLayout, make_column_layout, max_parts, sum_parts
from attnscope.attention.triton.support import KernelPlan
from attnscope.matrix.schedule import Schedule, ranges

Result = TypeVar("Result")

LOG2_E = math.log2(math.e)
ROW_BYTES = 4 * 12  # of the statistics of a row


class BinSums(NamedTuple):
    """Bins of a column pass, (batch, heads, row bins, column bins)."""

    sums: Tensor
    largest: Tensor | None  #: if asked


class KernelPasses:
    """The passes over query (batch, heads, queries, dim) and key (batch, key heads, keys, dim)."""

    def __init__(self, plan: KernelPlan, query: Tensor, key: Tensor, lse: Tensor | None, cells_per_row: float) -> None:
        self.plan, self.query, self.key = plan, query, key
        self.known_lse = lse  # (batch, heads, queries), of all rows
        self.cells_per_row = cells_per_row  # all heads and batch rows together
        self._rows: RowStatistics | None = None
        self._version = 0  # of the tensors in `_rows`

    @cached_property
    def inputs(self) -> KernelInputs:
        """What the row passes are given, on the device."""
        device, terms = self.query.device, self.plan.terms
        slopes, sinks = (None if one is None else to_device(one, device) for one in (terms.slopes, terms.sinks))
        query, key = (each if each.stride(-1) == 1 else each.contiguous() for each in (self.query, self.key))
        return KernelInputs(
            query,
            key,
            self.plan.intervals.to(device),
            terms._replace(slopes=slopes, sinks=sinks),
            self.plan.rows,
            self.plan.precision,
        )

    @cached_property
    def row_bounds(self) -> RowBounds:
        """Bounds of the mask in main memory."""
        return row_bounds(self.plan.intervals)

    @property
    def knows_lse(self) -> bool:
        """Whether the log-sum-exp of all rows is known."""
        return self._rows is not None or self.known_lse is not None

    def select_rows(self, top: int, bottom: int) -> KernelPasses:
        """The passes over rows [top, bottom), for `bins`: its distances are not those of the rows."""
        start, stop, backward_only = self.plan.intervals
        intervals = Intervals(start[:, top:bottom].contiguous(), stop[:, top:bottom].contiguous(), backward_only)
        terms = self.plan.terms._replace(slope_offset=self.plan.terms.slope_offset + top)
        plan = self.plan._replace(intervals=intervals, terms=terms)
        lse = None if self.known_lse is None else self.known_lse[:, :, top:bottom]
        return KernelPasses(plan, self.query[:, :, top:bottom], self.key, lse, self.cells_per_row)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is kept."""
        if self._rows is not None:
            yield from (one for one in self._rows if one is not None)

    def rows_with_keys(self, edges: Sequence[int]) -> Tensor:
        """The number of rows of each bin that attend to any key, (batch or 1, bins), in main memory."""
        start, stop, _ = self.plan.intervals
        before = torch.nn.functional.pad((stop > start).cumsum(-1), (1, 0))
        return before[:, torch.tensor(edges)].diff()

    def rows(self, schedule: Schedule, *, find_key: bool = False) -> RowStatistics:
        """The statistics of all rows; kept until one of them is changed in place.

        With `find_key`, they have the candidates for `largest_keys`.
        """
        is_valid = self._rows is not None and self._rows.lse._version == self._version
        if self._rows is not None and is_valid and (self._rows.candidates is not None or not find_key):
            return self._rows

        def run(inputs: KernelInputs) -> RowStatistics:
            return operators.row_statistics(inputs, find_key=find_key)

        found = self._over_heads(schedule, ROW_BYTES * self.query.shape[2], run)
        rows = RowStatistics._make(None if parts[0] is None else _join(parts) for parts in _transpose(found))
        if not rows.lse.is_inference():  # tensors of torch.inference_mode do not count changes
            self._rows, self._version = rows, rows.lse._version
        return rows

    def lse_base2(self, schedule: Schedule) -> Tensor:
        """The log-sum-exp of all rows times log2(e), for the column passes."""
        if self._rows is None and self.known_lse is not None:
            return self.known_lse * LOG2_E
        return self.rows(schedule).lse_base2

    def spread(self, schedule: Schedule) -> Tensor:
        """The standard deviation of query position - key position of each row."""
        first, second = schedule.split(2)
        rows = self.rows(first)
        given = rows.lse_base2, rows.distance
        return _join(self._over_heads(second, ROW_BYTES * self.query.shape[2], operators.distance_spread, *given))

    def neighbours(self, lse_base2: Tensor, reach: int, schedule: Schedule) -> NeighbourWeights:
        """The weights of each row on keys near its query."""

        def run(inputs: KernelInputs, lse: Tensor) -> NeighbourWeights:
            return operators.neighbour_weights(inputs, lse, reach)

        found = self._over_heads(schedule, ROW_BYTES * self.query.shape[2], run, lse_base2)
        return NeighbourWeights(*map(_join, _transpose(found)))

    def matches(
        self, lse_base2: Tensor, query_ids: Sequence[Tensor], key_ids: Sequence[Tensor], schedule: Schedule
    ) -> tuple[Tensor, Tensor]:
        """The weight of each row on keys with the id of its query, and their number, (batch, heads, pairings, queries).

        Ids are (batch, queries) and (batch, keys) for each pairing.
        """
        own, others = (torch.stack(list(ids)) for ids in (query_ids, key_ids))

        def run(inputs: KernelInputs, lse: Tensor) -> Tensor:
            return operators.matched_weights(inputs, lse, own, others)

        bytes_each = (4 * len(own) + ROW_BYTES) * self.query.shape[2]
        weights = _join(self._over_heads(schedule, bytes_each, run, lse_base2))
        return weights, operators.count_matches(self.inputs, own, others)[:, None].expand(weights.shape)

    def largest_keys(self, schedule: Schedule) -> Tensor:
        """The key with the largest weight of each row, -1 for rows without keys."""
        first, second = schedule.split(2)
        candidates = self.rows(first, find_key=True).candidates
        assert candidates is not None
        return _join(self._over_heads(second, ROW_BYTES * self.query.shape[2], operators.largest_keys, candidates))

    def received(self, lse_base2: Tensor, schedule: Schedule, rows: range | None = None) -> Tensor:
        """The column sums over all rows or some, (batch, heads, keys)."""
        rows = range(self.query.shape[2]) if rows is None else rows
        layout = self._layout([rows.start, rows.stop], [0, self.key.shape[2]], self.plan.columns, group=1)
        found = self._columns(layout, self.plan.columns, lse_base2, schedule)
        return _join([sums.squeeze(-2) for sums, _ in found])

    def columns_and_bins(
        self, row_edges: Sequence[int], column_edges: Sequence[int], lse_base2: Tensor, schedule: Schedule
    ) -> tuple[Tensor, Tensor]:
        """The sums of all columns, and of each bin, in one pass over the rows and columns between the outer edges."""
        layout = self._layout(row_edges, column_edges, self.plan.columns, group=1)
        found = [
            (sums.sum(-2), sum_parts(sums, layout.counts))
            for sums, _ in self._columns(layout, self.plan.columns, lse_base2, schedule)
        ]
        columns, bins = map(_join, _transpose(found))
        return columns, bins

    def bins(
        self,
        row_edges: Sequence[int],
        column_edges: Sequence[int],
        lse_base2: Tensor,
        schedule: Schedule,
        *,
        maximum: bool,
    ) -> BinSums:
        """The sum and, if asked, the largest weight of each bin; equal edges make an empty bin, which has 0."""
        layout = self._layout(row_edges, column_edges, self.plan.bins)
        found = [
            BinSums(sum_parts(sums, layout.counts), max_parts(largest, layout.counts) if maximum else None)
            for sums, largest in self._columns(layout, self.plan.bins, lse_base2, schedule, maximum=maximum)
        ]
        largest = [one.largest for one in found if one.largest is not None]
        return BinSums(_join([one.sums for one in found]), _join(largest) if largest else None)

    def _layout(
        self, row_edges: Sequence[int], column_edges: Sequence[int], config: Config, *, group: int | None = None
    ) -> ColumnLayout:
        keys = config.block_keys
        return make_column_layout(self.row_bounds, row_edges, column_edges, keys, group=group).to(self.query.device)

    def _columns(
        self, layout: ColumnLayout, config: Config, lse_base2: Tensor, schedule: Schedule, *, maximum: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Sums and maxima of a layout, for some heads at a time."""

        def run(inputs: KernelInputs, lse: Tensor) -> tuple[Tensor, Tensor]:
            return operators.column_sums(inputs._replace(config=config), lse, layout, maximum=maximum)

        bytes_each = 4 * (len(layout.edges) - 1) * layout.width * (3 if maximum else 2)
        return self._over_heads(schedule, bytes_each, run, lse_base2)

    def _over_heads(
        self, schedule: Schedule, bytes_each: int, run: Callable[..., Result], *given: Tensor
    ) -> Iterator[Result]:
        """Yield the results of a kernel for some heads at a time; `given` are tensors (batch, heads, ...)."""
        batch, heads, queries, _ = self.query.shape
        cells = self.cells_per_row * queries / heads
        size = len(schedule.steps(heads, cells, bytes_each * batch, self.query.device)[0])
        steps = ranges(heads, fit_to_groups(size, heads // self.key.shape[1]))
        for step in schedule.track(steps):
            some = slice(step.start, step.stop)
            yield run(_select_heads(self.inputs, some), *(one[:, some] for one in given))


def fit_to_groups(size: int, group: int) -> int:
    """The largest number of heads up to `size` of which each range has whole groups, or a part of one group.

    >>> [fit_to_groups(size, 6) for size in (1, 4, 6, 11, 12)]
    [1, 3, 6, 6, 12]
    """
    return size // group * group if size >= group else next(at for at in range(size, 0, -1) if group % at == 0)


def _select_heads(inputs: KernelInputs, heads: slice) -> KernelInputs:
    """The attention of some heads, and of the key heads that they read."""
    group, terms = inputs.query.shape[1] // inputs.key.shape[1], inputs.terms
    slopes, sinks = (None if one is None else one[heads] for one in (terms.slopes, terms.sinks))
    return inputs._replace(
        query=inputs.query[:, heads],
        key=inputs.key[:, heads.start // group : (heads.stop - 1) // group + 1],
        terms=terms._replace(slopes=slopes, sinks=sinks),
    )


def _join(parts: Iterable[Tensor]) -> Tensor:
    """All heads from the results of some at a time."""
    first, *others = parts
    return torch.cat([first, *others], 1) if others else first


def _transpose(found: Iterable[tuple]) -> list[tuple]:
    """The results of each field."""
    return list(zip(*found, strict=True))
