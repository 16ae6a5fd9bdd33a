"""Attention by online softmax over blocks: any mask, any score modifier, any device, O(n) memory in both passes.

In: a spec with its tensors, and the blocks. A row keeps its running maximum, its running sum and its weighted values. A
block of scores exists only while it is used, and the backward computes it again (arXiv 1805.02867, 2205.14135). Scores
and sums are at least fp32, whatever the dtype of the inputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.block_sizes import block_sizes
from attnscope.attention.blocks import ColumnBlock, RowBlock, iter_blocks
from attnscope.attention.cells import allowed_cells, block_scores, fold_query_groups, unfold_query_groups
from attnscope.attention.first_order import Gradients, first_order
from attnscope.attention.regions import Region
from attnscope.attention.scores import Cells
from attnscope.attention.spec import AttentionSpec, without_autocast


class BatchRegions(NamedTuple):
    """Batch rows that have the same regions."""

    batch: slice
    regions: tuple[Region, ...]


class StreamingPlan(NamedTuple):
    """The blocks of one attention; `exact` if the regions are the whole mask, and not only a bound on it.

    Regions count rows from the first one of the given query, which is row `first_row` of the matrix.
    """

    groups: tuple[BatchRegions, ...]
    exact: bool
    block_rows: int
    block_columns: int
    first_row: int = 0


def streaming_attention(
    spec: AttentionSpec, plan: StreamingPlan, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Return output and lse; both are differentiable once."""
    seed = int(torch.randint(2**62, ())) if spec.dropout else 0
    inputs = (query, key, value, *spec.parameters)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs):
        return _StreamingFunction.apply(spec, plan, seed, *inputs)
    return StreamingAttention(spec, plan, seed, (query, key, value)).forward()


class _StreamingFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        spec: AttentionSpec,
        plan: StreamingPlan,
        seed: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *parameters: Tensor | None,
    ):
        output, lse = StreamingAttention(spec, plan, seed, (query, key, value)).forward()
        ctx.save_for_backward(query, key, value, output, lse, *parameters)
        ctx.call = spec, plan, seed
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        query, key, value, output, lse, *_ = ctx.saved_tensors
        spec, plan, seed = ctx.call
        attention = StreamingAttention(spec, plan, seed, (query, key, value))

        def compute(grad_output: Tensor | None, grad_lse: Tensor | None, output: Tensor, lse: Tensor) -> Gradients:
            with without_autocast(query.device):
                return attention.backward(grad_output, grad_lse, output, lse, needs_grad=ctx.needs_input_grad[3:])

        return None, None, None, *first_order("streaming", compute, *gradients, output, lse)


class _BackwardRows(NamedTuple):
    """A block of rows in the backward; `delta` is sum(grad_output * output) - grad_lse of each row."""

    batch: slice
    rows: RowBlock
    grad_output: Tensor
    delta: Tensor
    lse: Tensor


class _ScoreBlock(NamedTuple):
    """The scores of one block: before and after each score step, and finally masked."""

    cells: Cells
    stages: list[Tensor]
    scores: Tensor


class StreamingAttention:
    """The forward and backward pass of one attention; the tensors of a block are (batch, heads, rows, ...)."""

    def __init__(
        self, spec: AttentionSpec, plan: StreamingPlan, seed: int, tensors: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        self.spec, self.plan, self.seed = spec, plan, seed
        self.query, self.key, self.value = tensors
        self.dtype = spec.compute_dtype

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return output and lse of every row."""
        query, value = self.query, self.value
        output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        lse = torch.full(query.shape[:-1], -math.inf, dtype=self.dtype, device=query.device)
        for group in self.plan.groups:
            for rows in iter_blocks(group.regions, self.plan.block_rows, self.plan.block_columns):
                row_output, row_lse = self._forward_rows(group.batch, rows)
                output[group.batch, :, rows.top : rows.bottom] = row_output
                lse[group.batch, :, rows.top : rows.bottom] = row_lse
        return output, lse

    def _forward_rows(self, batch: slice, rows: RowBlock) -> tuple[Tensor, Tensor]:
        query = self._rows(self.query, batch, rows)
        row_max = query.new_full((*query.shape[:-1], 1), -math.inf)
        row_sum = torch.zeros_like(row_max)
        accumulator = query.new_zeros(*query.shape[:-1], self.value.shape[-1])
        for columns in rows.columns:
            block = self._score_block(query, batch, rows, columns)
            if block is None:
                continue
            new_max = torch.maximum(row_max, block.scores.amax(-1, keepdim=True))
            finite = new_max.masked_fill(new_max == -math.inf, 0.0)  # no key so far: exp(-inf - 0) = 0, not NaN
            weights = block.scores.sub_(finite).exp_()
            rescale = (row_max - finite).exp_()
            row_sum = row_sum.mul_(rescale).add_(weights.sum(-1, keepdim=True))
            weights = self._drop(weights, batch, rows, columns)
            value = self._columns(self.value, batch, columns)
            products = unfold_query_groups(fold_query_groups(weights, self.spec) @ value, self.spec)
            accumulator = accumulator.mul_(rescale).add_(products)
            row_max = new_max
        output = accumulator / row_sum.masked_fill(row_sum == 0.0, 1.0)
        return output, (row_max.masked_fill(row_sum == 0.0, 0.0) + row_sum.log()).squeeze(-1)

    def backward(
        self,
        grad_output: Tensor | None,
        grad_lse: Tensor | None,
        output: Tensor,
        lse: Tensor,
        *,
        needs_grad: tuple[bool, ...],
    ) -> Gradients:
        """Return gradients of query, key, value and of each step's parameter; None where `needs_grad` is False."""
        inputs = (self.query, self.key, self.value, *self.spec.parameters)
        sums = [
            torch.zeros(tensor.shape, dtype=self.dtype, device=tensor.device) if tensor is not None and need else None
            for tensor, need in zip(inputs, needs_grad, strict=True)
        ]
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output
        grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse
        lse = lse.masked_fill(lse == -math.inf, 0.0)  # a row without keys: exp(-inf - 0) = 0
        for group in self.plan.groups:
            for rows in iter_blocks(group.regions, self.plan.block_rows, self.plan.block_columns):
                row_grad = self._rows(grad_output, group.batch, rows)
                delta = (row_grad * self._rows(output, group.batch, rows)).sum(-1, keepdim=True)
                delta -= self._rows(grad_lse[..., None], group.batch, rows)
                row_lse = self._rows(lse[..., None], group.batch, rows)
                self._backward_rows(_BackwardRows(group.batch, rows, row_grad, delta, row_lse), sums)
        return tuple(
            None if total is None or tensor is None else total.to(tensor.dtype)
            for total, tensor in zip(sums, inputs, strict=True)
        )

    def _backward_rows(self, row: _BackwardRows, sums: list[Tensor | None]) -> None:
        """Add the gradients that come from these rows to `sums`."""
        query_sum, key_sum, value_sum, *parameter_sums = sums
        spec, query = self.spec, self._rows(self.query, row.batch, row.rows)
        grad_output = fold_query_groups(row.grad_output, spec)
        for columns in row.rows.columns:
            block = self._score_block(query, row.batch, row.rows, columns)
            if block is None:
                continue
            key = self._columns(self.key, row.batch, columns)
            value = self._columns(self.value, row.batch, columns)
            weights = block.scores.sub_(row.lse).exp_()
            dropped = self._drop(weights, row.batch, row.rows, columns)
            if value_sum is not None:
                grad_value = fold_query_groups(dropped, spec).mT @ grad_output
                value_sum[row.batch, :, columns.left : columns.right].add_(grad_value)
            grad_weights = unfold_query_groups(grad_output @ value.mT, spec)
            grad_weights = self._drop(grad_weights, row.batch, row.rows, columns)
            grad_scores = grad_weights.sub_(row.delta).mul_(weights)
            for i in reversed(range(len(spec.steps))):
                grad_scores = spec.steps[i].backward(grad_scores, block.stages[i + 1], block.cells, parameter_sums[i])
            grad_scores = fold_query_groups(grad_scores * spec.scale, spec)
            if query_sum is not None:
                grad_query = unfold_query_groups(grad_scores @ key, spec)
                query_sum[row.batch, :, row.rows.top : row.rows.bottom].add_(grad_query)
            if key_sum is not None:
                grad_key = grad_scores.mT @ fold_query_groups(query, spec)
                key_sum[row.batch, :, columns.left : columns.right].add_(grad_key)

    def _score_block(self, query: Tensor, batch: slice, rows: RowBlock, columns: ColumnBlock) -> _ScoreBlock | None:
        """Return the masked scores of one block; None if the mask allows none of its cells."""
        start, device = self.plan.first_row, query.device
        cells = Cells(
            torch.arange(start + rows.top, start + rows.bottom, device=device)[:, None],
            torch.arange(columns.left, columns.right, device=device)[None, :],
            self.spec.sizes,
            batch,
        )
        forbidden = None
        if not (columns.is_full and self.plan.exact):
            allowed = allowed_cells(self.spec, cells)
            if block_sizes(device).can_read and not allowed.any():
                return None
            forbidden = ~allowed
        stages = block_scores(self.spec, query, self._columns(self.key, batch, columns), cells)
        scores = stages[-1]
        if self.spec.steps:
            scores = scores.clone()  # the caller works in place, and the backward of a step needs its result
        if forbidden is not None:
            scores.masked_fill_(forbidden, -math.inf)
        return _ScoreBlock(cells, stages, scores)

    def _drop(self, weights: Tensor, batch: slice, rows: RowBlock, columns: ColumnBlock) -> Tensor:
        """Apply dropout; the same block loses the same weights each time it is computed."""
        if not self.spec.dropout:
            return weights
        sizes = self.spec.sizes
        cell = (range(sizes.batch)[batch].start * sizes.queries + rows.top) * sizes.keys + columns.left
        generator = torch.Generator(weights.device).manual_seed((self.seed + cell) % 2**63)
        kept = torch.rand(weights.shape, generator=generator, device=weights.device) >= self.spec.dropout
        return weights * kept / (1.0 - self.spec.dropout)

    def _rows(self, tensor: Tensor, batch: slice, rows: RowBlock) -> Tensor:
        return tensor[batch, :, rows.top : rows.bottom].to(self.dtype)

    def _columns(self, tensor: Tensor, batch: slice, columns: ColumnBlock) -> Tensor:
        return tensor[batch, :, columns.left : columns.right].to(self.dtype)
