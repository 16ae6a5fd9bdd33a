"""Attention weights that are computed on request from query, key and spec.

Statistics use the Triton kernels where they can; `kernel_passes` has them. Products use the fused kernel if the scores
are plain and the mask is a short list of rectangles, and the streaming implementation otherwise. Everything is computed
in at least fp32 from query and key as stored. Memory: O(n) and the requested cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from attnscope.attention import fused, regions, streaming
from attnscope.attention.algebra import RegionMask, Sizes
from attnscope.attention.block_sizes import block_sizes
from attnscope.attention.cells import allowed_cells, block_scores, pair_scores
from attnscope.attention.kernel_blocks import split_regions
from attnscope.attention.plan import group_batch_rows, make_plan, why_not_fused
from attnscope.attention.scores import Cells, Temperature
from attnscope.attention.spec import AttentionSpec
from attnscope.attention.tensors import count_bytes, iter_tensors, map_tensors
from attnscope.attention.transfers import to_device
from attnscope.attention.triton.support import plan_kernels
from attnscope.matrix.kernel_passes import KernelPasses
from attnscope.matrix.positions import Positions
from attnscope.matrix.schedule import Schedule


class LazyWeights:
    """Weights exp(score - lse) from query (batch, heads, queries, dim) and key (batch, key heads, keys, dim)."""

    def __init__(self, spec: AttentionSpec, query: Tensor, key: Tensor, lse: Tensor | None = None) -> None:
        self.spec, self.query, self.key = spec, query, key
        self.cached_lse = lse

    @property
    def sizes(self) -> Sizes:
        """(batch, heads, queries, keys)."""
        return self.spec.sizes

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all results."""
        return self.spec.compute_dtype

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of query and key."""
        return self.query.dtype

    @property
    def device(self) -> torch.device:
        """The device of all results."""
        return self.query.device

    @property
    def nbytes(self) -> int:
        """Bytes of the stored tensors: query, key, lse, statistics of rows, and the tensors of mask and scores."""
        return count_bytes(self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Every stored tensor."""
        passes: KernelPasses | None = vars(self).get("passes")  # without making them
        kept = () if passes is None else tuple(passes.tensors())
        return iter_tensors((self.query, self.key, self.cached_lse, *kept, *self._spec_parts))

    @property
    def _spec_parts(self) -> tuple[object, ...]:
        return self.spec.mask, self.spec.steps, self.spec.sinks

    def to(self, device: torch.device, dtype: torch.dtype) -> LazyWeights:
        """Query and key on a device and in a dtype; lse is computed again in another dtype."""
        query, key = self.query.to(device, dtype), self.key.to(device, dtype)
        mask, steps, sinks = map_tensors(self._spec_parts, lambda tensor: tensor.to(device))
        signature = self.spec.signature._replace(dtype=dtype, device=query.device)
        spec = replace(self.spec, signature=signature, mask=mask, steps=steps, sinks=sinks)
        known = self.cached_lse is not None and dtype == self.query.dtype
        return LazyWeights(
            spec, query, key, self.cached_lse.to(device) if known and self.cached_lse is not None else None
        )

    def without_sinks(self) -> LazyWeights:
        """The weights over the keys alone; the same object if the attention has no sinks."""
        if self.spec.sinks is None:
            return self
        return LazyWeights(replace(self.spec, sinks=None), self.query, self.key)

    @cached_property
    def region_mask(self) -> RegionMask | None:
        """The mask as regions, if it has that structure."""
        found = self.spec.mask.to_regions(self.spec.sizes)
        return None if found is None else found.to(self.device)

    @cached_property
    def fused(self) -> bool:
        """Whether products can use the fused kernel."""
        return why_not_fused(self.spec, self.region_mask) is None

    @cached_property
    def passes(self) -> KernelPasses | None:
        """The Triton kernels, where they compute the statistics of this attention."""
        plan = plan_kernels(self.spec, self.region_mask)
        if isinstance(plan, str):
            return None
        return KernelPasses(plan, self.query, self.key, self.cached_lse, self.cells_per_row)

    @cached_property
    def groups(self) -> list[tuple[slice, tuple[regions.Region, ...]]]:
        """Batch rows that share their regions, for the fused kernel."""
        assert self.region_mask is not None
        return group_batch_rows(self.region_mask)

    @cached_property
    def streaming_plan(self) -> streaming.StreamingPlan:
        """The plan over all rows, for the streaming implementation."""
        walk = make_plan(self.spec, "streaming").streaming_plan
        assert walk is not None
        return walk

    @cached_property
    def cells_per_row(self) -> float:
        """Allowed cells per row on average, all heads and batch rows together."""
        batch, heads, queries, keys = self.sizes
        if self.region_mask is None:
            return batch * heads * keys
        rows = self.region_mask.regions * (batch // len(self.region_mask.regions))
        return heads * sum(map(regions.area, rows)) / max(queries, 1)

    def narrow(self, batch: slice, heads: slice) -> LazyWeights:
        """The weights of some batch rows and heads."""
        group = self.sizes.heads // self.spec.num_kv_heads
        first, last = heads.start // group, (heads.stop - 1) // group
        query, key = self.query[batch, heads], self.key[batch, first : last + 1]
        signature = self.spec.signature._replace(query=query.shape, key=key.shape, value=key.shape)
        spec = replace(
            self.spec,
            signature=signature,
            sizes=Sizes(query.shape[0], query.shape[1], query.shape[2], key.shape[2]),
            mask=self.spec.mask.narrow(batch, heads),
            steps=tuple(step.narrow(batch, heads) for step in self.spec.steps),
            sinks=None if self.spec.sinks is None else self.spec.sinks.narrow(heads),
        )
        return LazyWeights(spec, query, key, None if self.cached_lse is None else self.cached_lse[batch, heads])

    def scale_scores(self, factor: float) -> LazyWeights:
        """The weights with scores times `factor`, without sinks."""
        if self.spec.steps:
            spec = replace(self.spec, steps=(*self.spec.steps, Temperature(1 / factor)), sinks=None)
        else:
            spec = replace(self.spec, scale=self.spec.scale * factor, sinks=None)
        return LazyWeights(spec, self.query, self.key)

    def lse(self, schedule: Schedule) -> Tensor:
        """The log-sum-exp of each row including sinks, (batch, heads, queries), cached."""
        if self.cached_lse is None and self.passes is not None:
            self.cached_lse = self.passes.known_lse = self.passes.rows(schedule).lse
        if self.cached_lse is None:
            steps = schedule.track(self.row_steps(schedule))
            self.cached_lse = torch.cat([self.row_products(step, None)[1] for step in steps], 2)
        return self.cached_lse

    def lse_of(self, rows: Positions) -> Tensor:
        """The log-sum-exp of some rows, without computing that of all rows."""
        if self.cached_lse is not None:
            return self.cached_lse[:, :, rows.index]
        if self.fused and rows.is_range and len(rows):
            return self.row_products(range(rows.start, rows.stop), None)[1]
        total = torch.full((*self.sizes[:2], len(rows)), -math.inf, dtype=self.dtype, device=self.device)
        first, last = self.column_range(rows.start, rows.stop) if len(rows) else (0, 0)
        cells = block_sizes(self.device).row_cells
        wide = max(1, cells // max(len(rows) * self.sizes.batch * self.sizes.heads, 1))
        for left in range(first, last, wide):
            columns = Positions(range(left, min(left + wide, last)), self.device)
            total = torch.logaddexp(total, _logsumexp(self.scores(rows, columns)))
        return self.with_sinks(total)

    def column_range(self, top: int, bottom: int) -> tuple[int, int]:
        """The columns [first, last) outside of which rows [top, bottom) have no allowed cell."""
        if self.region_mask is None or top >= bottom:
            return 0, self.sizes.keys
        beside = [
            (max(region.left, top + region.lowest), min(region.right, bottom + region.highest))
            for found in self.region_mask.regions
            for region in found
            if region.top < bottom and region.bottom > top
        ]
        return (min(left for left, _ in beside), max(right for _, right in beside)) if beside else (0, 0)

    def scores(self, rows: Positions, columns: Positions) -> Tensor:
        """The masked scores of a block, (batch, heads, rows, columns)."""
        cells = Cells(rows.tensor[:, None], columns.tensor[None, :], self.sizes)
        query, key = self.query[:, :, rows.index].to(self.dtype), self.key[:, :, columns.index].to(self.dtype)
        scores = block_scores(self.spec, query, key, cells)[-1]
        return (
            scores
            if self._all_allowed(rows, columns)
            else scores.masked_fill(~allowed_cells(self.spec, cells), -math.inf)
        )

    def _all_allowed(self, rows: Positions, columns: Positions) -> bool:
        """Whether the mask allows every cell between the first and last of these rows and columns."""
        if self.region_mask is None or self.region_mask.key_mask is not None or not len(rows) or not len(columns):
            return False
        block = regions.rectangle(rows.start, rows.stop, columns.start, columns.stop)
        return all(
            regions.area(regions.intersection(found, [block])) == block.area for found in self.region_mask.regions
        )

    @property
    def bytes_per_pair(self) -> int:
        """Temporary bytes per cell of `pairs`: its query and its key."""
        return 2 * self.query.shape[-1] * self.dtype.itemsize

    def block(self, rows: Positions, columns: Positions) -> Tensor:
        """A block of weights."""
        return self.log_weights(rows, columns).exp_()

    def log_weights(self, rows: Positions, columns: Positions) -> Tensor:
        """The logarithms of a block of weights; -inf for masked cells and rows without keys."""
        scores = self.scores(rows, columns)
        if self.cached_lse is None and len(columns) == self.sizes.keys and columns.is_range:
            lse = self.with_sinks(scores.logsumexp(-1))[..., None]  # whole rows compute their own lse
        else:
            lse = self.lse_of(rows)[..., None]
        return scores.sub_(lse.masked_fill(lse == -math.inf, 0.0))

    def pairs(self, rows: Positions, columns: Positions) -> Tensor:
        """The weights of cells (rows[p], columns[p]), (batch, heads, pairs)."""
        cells = Cells(rows.tensor, columns.tensor, self.sizes)
        group = self.sizes.heads // self.spec.num_kv_heads
        query = self.query[:, :, rows.index].to(self.dtype)
        key = self.key[:, :, columns.index].to(self.dtype).repeat_interleave(group, dim=1)
        lse = self._lse_for_pairs(rows)
        scores = pair_scores(self.spec, query, key, cells).masked_fill(~allowed_cells(self.spec, cells), -math.inf)
        return (scores - lse.masked_fill(lse == -math.inf, 0.0)).exp()

    def _lse_for_pairs(self, rows: Positions) -> Tensor:
        if self.cached_lse is not None or rows.is_range:
            return self.lse_of(rows)
        distinct, where = rows.host.unique(return_inverse=True)
        return self.lse_of(Positions(distinct, self.device))[:, :, to_device(where, self.device)]

    def products(self, values: Tensor, schedule: Schedule) -> Tensor:
        """Weights @ values, with values (batch, heads or key heads, keys, width)."""
        steps = schedule.track(self.row_steps(schedule, values))
        return torch.cat([self.row_products(step, values)[0] for step in steps], 2)

    def row_steps(self, schedule: Schedule, values: Tensor | None = None) -> list[range]:
        """Split the rows into steps for `row_products`."""
        width = (self.key if values is None else values).shape[-1] + self.query.shape[-1]
        bytes_each = 4 * self.sizes.batch * self.sizes.heads * width * self.dtype.itemsize
        cells = self.cells_per_row * (1 if self.fused else 4)  # a score takes longer in the streaming implementation
        return schedule.steps(self.sizes.queries, cells, bytes_each, self.device)

    def row_products(
        self, rows: range, values: Tensor | None, *, columns: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weights @ values and lse of some rows, over all columns or over columns [left, right).

        Values default to the keys. Over a part of the columns, the softmax is over these columns, without sinks.
        """
        query = self.query[:, :, rows.start : rows.stop].to(self.dtype)
        if self.fused:
            output, lse = self._fused(query, values, rows, (0, self.sizes.keys) if columns is None else columns)
        else:
            assert columns is None, "the streaming implementation needs all columns"
            output, lse = self._streaming(query, values, rows)
        if self.spec.sinks is None or columns is not None:
            return output, lse
        return self.spec.sinks.apply(output, lse)

    def _fused(
        self, query: Tensor, values: Tensor | None, rows: range, columns: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Call the fused kernel on some keys at a time and merge by lse.

        That bounds the memory for keys in working precision, and short fp32 sums lose fewer digits than long ones.
        """
        at_once = block_sizes(self.device).keys_per_call
        first, last = self.column_range(rows.start, max(rows.stop, rows.start + 1))
        first, last = max(first, columns[0]), min(last, columns[1])
        width = self.key.shape[-1] if values is None else values.shape[-1]
        output = torch.zeros(*query.shape[:-1], width, dtype=self.dtype, device=self.device)
        lse = fused.empty_lse(query)
        for left in range(first, last, at_once):
            right = min(left + at_once, last)
            key = self._key(left, right, heads=None if values is None else values.shape[1])
            some = key if values is None else values[:, :, left - columns[0] : right - columns[0]]
            part = fused.fused_attention(self._work(rows, left, right), query, key, some)
            fused.merge_partials(output, lse, *part, first=left == first)
        return output, lse.to(self.dtype)

    def _work(self, rows: range, left: int, right: int) -> fused.FusedPlan:
        groups = tuple(
            fused.BatchBlocks(
                batch, split_regions(regions.crop_columns(regions.crop_rows(found, rows.start, rows.stop), left, right))
            )
            for batch, found in self.groups
        )
        keep = None if self.region_mask is None else self.region_mask.key_mask
        bias = None if keep is None else fused.key_bias(keep[:, left:right], self.dtype)
        return fused.make_fused_plan(groups, len(rows), right - left, self.spec.scale, bias)

    def _streaming(self, query: Tensor, values: Tensor | None, rows: range) -> tuple[Tensor, Tensor]:
        key = self._key(0, self.sizes.keys, heads=None if values is None else values.shape[1])
        values = key if values is None else values
        groups = tuple(
            streaming.BatchRegions(batch, regions.crop_rows(found, rows.start, rows.stop))
            for batch, found in self.streaming_plan.groups
        )
        spec = replace(self.spec, signature=self.spec.signature._replace(key=key.shape, value=values.shape))
        return streaming.streaming_attention(
            spec, self.streaming_plan._replace(groups=groups, first_row=rows.start), query, key, values
        )

    def _key(self, left: int, right: int, heads: int | None) -> Tensor:
        """The keys of some columns in working precision, repeated per query head if values differ by head."""
        key = self.key[:, :, left:right].to(self.dtype)
        return key if heads in (None, self.spec.num_kv_heads) else self._for_each_head(key)

    def _for_each_head(self, key: Tensor) -> Tensor:
        return key.repeat_interleave(self.sizes.heads // self.spec.num_kv_heads, dim=1)

    def transposed_products(self, values: Tensor | None, schedule: Schedule) -> tuple[Tensor, Tensor]:
        """Weights^T @ values and the logarithm of the column sums, by the fused kernel.

        Queries and keys are swapped, -lse is a bias on the new keys, and the output is multiplied by the column sums.
        Both sequences are reversed, so that a causal mask stays causal.
        """
        assert self.fused
        assert self.region_mask is not None
        first, second = schedule.split(2)
        minus_lse = -self.lse(first).flip(-1)
        bias = minus_lse.masked_fill(minus_lse == math.inf, -math.inf)  # a row without keys adds nothing
        swapped_key = self.query.to(self.dtype).flip(2)
        values = swapped_key if values is None else values.flip(2)
        queries, keys = self.sizes.queries, self.sizes.keys
        turned = [(batch, regions.mirror(found, queries, keys)) for batch, found in self.groups]
        bytes_each = 4 * self.sizes.batch * self.sizes.heads * 2 * self.query.shape[-1] * self.dtype.itemsize
        pieces = []
        cells = self.cells_per_row * queries / max(keys, 1)
        for step in second.track(second.steps(keys, cells, bytes_each, self.device)):
            some = self.key[:, :, keys - step.stop : keys - step.start].to(self.dtype).flip(2)
            groups = tuple(
                fused.BatchBlocks(batch, split_regions(regions.crop_rows(found, step.start, step.stop)))
                for batch, found in turned
            )
            work = fused.make_fused_plan(groups, len(step), queries, self.spec.scale, bias)
            pieces.append(fused.fused_attention(work, self._for_each_head(some), swapped_key, values))
        output = torch.cat([part for part, _ in pieces], 2).flip(2)
        received = torch.cat([part for _, part in pieces], 2).flip(2)
        if self.region_mask.key_mask is not None:
            received = received.masked_fill(~self.region_mask.key_mask[:, None], -math.inf)
        return output * received.exp()[..., None], received

    def with_sinks(self, lse: Tensor) -> Tensor:
        """The log-sum-exp including sinks."""
        if self.spec.sinks is None:
            return lse
        return self.spec.sinks.apply(lse.new_zeros(*lse.shape, 1), lse)[1]


def _logsumexp(scores: Tensor) -> Tensor:
    """`torch.logsumexp` over the last axis in place, with a third of its memory traffic."""
    peak = scores.amax(-1, keepdim=True)
    finite = peak.masked_fill_(peak == -math.inf, 0.0)
    return scores.sub_(finite).exp_().sum(-1).log_().add_(finite.squeeze(-1))
