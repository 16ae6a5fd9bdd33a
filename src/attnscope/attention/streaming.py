"""Attention by online softmax over blocks: any mask, any score, on any device, O(n) memory forward and backward.

In: a rule with its tensors, and the blocks to walk. A row keeps its running maximum, its running sum and its weighted
values; a block of scores lives only while it is used, and the backward computes it again (arXiv 1805.02867,
2205.14135). Scores and sums are fp32 at least, whatever the inputs are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.blocks import Columns, Rows, walk
from attnscope.attention.cells import allowed, block_scores, gathered, ungathered
from attnscope.attention.first_order import Gradients, first_order
from attnscope.attention.regions import Region
from attnscope.attention.rule import Rule
from attnscope.attention.scores import Cells


class Group(NamedTuple):
    """Batch rows that share the regions their mask allows."""

    batch: slice
    regions: tuple[Region, ...]


class Walk(NamedTuple):
    """The blocks of one attention; `exact` when the regions are the whole mask, and not only a bound on it.

    Regions count rows from the first one of the query that is given, which is row `first_row` of the matrix.
    """

    groups: tuple[Group, ...]
    exact: bool
    block_rows: int
    block_columns: int
    first_row: int = 0


def solve(rule: Rule, path: Walk, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse; both differentiable, once."""
    seed = int(torch.randint(2**62, ())) if rule.dropout else 0
    inputs = (query, key, value, *rule.parameters)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs):
        return _Streaming.apply(rule, path, seed, *inputs)
    return Walker(rule, path, seed, (query, key, value)).forward()


class _Streaming(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, rule: Rule, path: Walk, seed: int, query: Tensor, key: Tensor, value: Tensor, *parameters: Tensor | None
    ):
        output, lse = Walker(rule, path, seed, (query, key, value)).forward()
        ctx.save_for_backward(query, key, value, output, lse, *parameters)
        ctx.frame = rule, path, seed
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        query, key, value, output, lse, *_ = ctx.saved_tensors
        rule, path, seed = ctx.frame
        walker = Walker(rule, path, seed, (query, key, value))

        def compute(above: Tensor | None, lse_above: Tensor | None, output: Tensor, lse: Tensor) -> Gradients:
            with torch.autocast(query.device.type, enabled=False):
                return walker.backward(above, lse_above, output, lse, wanted=ctx.needs_input_grad[3:])

        return None, None, None, *first_order("streaming", compute, *gradients, output, lse)


class _Row(NamedTuple):
    """What the backward knows of a block of rows: gradient from above, its mean under the weights, and lse."""

    batch: slice
    rows: Rows
    above: Tensor
    centre: Tensor
    lse: Tensor


class _Block(NamedTuple):
    """The scores of one block: before and after each step, and in the end masked."""

    cells: Cells
    stages: list[Tensor]
    scores: Tensor


class Walker:
    """Walks over the blocks of one attention, both ways; the tensors of a block are (batch, heads, rows, ...)."""

    def __init__(self, rule: Rule, path: Walk, seed: int, tensors: tuple[Tensor, Tensor, Tensor]) -> None:
        self.rule, self.path, self.seed = rule, path, seed
        self.query, self.key, self.value = tensors
        self.precise = rule.precise

    def forward(self) -> tuple[Tensor, Tensor]:
        """Output and lse of every row."""
        query, value = self.query, self.value
        output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        lse = torch.full(query.shape[:-1], -math.inf, dtype=self.precise, device=query.device)
        for group in self.path.groups:
            for rows in walk(group.regions, self.path.block_rows, self.path.block_columns):
                part, part_lse = self._forward_rows(group.batch, rows)
                output[group.batch, :, rows.top : rows.bottom] = part
                lse[group.batch, :, rows.top : rows.bottom] = part_lse
        return output, lse

    def _forward_rows(self, batch: slice, rows: Rows) -> tuple[Tensor, Tensor]:
        query = self._rows(self.query, batch, rows)
        peak = query.new_full((*query.shape[:-1], 1), -math.inf)
        total = torch.zeros_like(peak)
        summed = query.new_zeros(*query.shape[:-1], self.value.shape[-1])
        for columns in rows.columns:
            block = self._block(query, batch, rows, columns)
            if block is None:
                continue
            higher = torch.maximum(peak, block.scores.amax(-1, keepdim=True))
            finite = higher.masked_fill(higher == -math.inf, 0.0)  # no key so far: exp(-inf - 0) = 0, not NaN
            weights = block.scores.sub_(finite).exp_()
            fade = (peak - finite).exp_()
            total = total.mul_(fade).add_(weights.sum(-1, keepdim=True))
            weights = self._dropped(weights, batch, rows, columns)
            value = self._columns(self.value, batch, columns)
            summed = summed.mul_(fade).add_(ungathered(gathered(weights, self.rule) @ value, self.rule))
            peak = higher
        output = summed / total.masked_fill(total == 0.0, 1.0)
        return output, (peak.masked_fill(total == 0.0, 0.0) + total.log()).squeeze(-1)

    def backward(
        self,
        output_gradient: Tensor | None,
        lse_gradient: Tensor | None,
        output: Tensor,
        lse: Tensor,
        *,
        wanted: tuple[bool, ...],
    ) -> Gradients:
        """Gradients of query, key, value and of each step's parameter, where wanted."""
        inputs = (self.query, self.key, self.value, *self.rule.parameters)
        sums = [
            torch.zeros(tensor.shape, dtype=self.precise, device=tensor.device) if tensor is not None and want else None
            for tensor, want in zip(inputs, wanted, strict=True)
        ]
        above_all = torch.zeros_like(output) if output_gradient is None else output_gradient
        lse_above = torch.zeros_like(lse) if lse_gradient is None else lse_gradient
        lse = lse.masked_fill(lse == -math.inf, 0.0)  # a row without keys: exp(-inf - 0) = 0
        for group in self.path.groups:
            for rows in walk(group.regions, self.path.block_rows, self.path.block_columns):
                above = self._rows(above_all, group.batch, rows)
                centre = (above * self._rows(output, group.batch, rows)).sum(-1, keepdim=True)
                centre -= self._rows(lse_above[..., None], group.batch, rows)
                row_lse = self._rows(lse[..., None], group.batch, rows)
                self._backward_rows(_Row(group.batch, rows, above, centre, row_lse), sums)
        return tuple(
            None if total is None or tensor is None else total.to(tensor.dtype)
            for total, tensor in zip(sums, inputs, strict=True)
        )

    def _backward_rows(self, row: _Row, sums: list[Tensor | None]) -> None:
        query_sum, key_sum, value_sum, *parameter_sums = sums
        rule, query, above = self.rule, self._rows(self.query, row.batch, row.rows), gathered(row.above, self.rule)
        for columns in row.rows.columns:
            block = self._block(query, row.batch, row.rows, columns)
            if block is None:
                continue
            key = self._columns(self.key, row.batch, columns)
            value = self._columns(self.value, row.batch, columns)
            weights = block.scores.sub_(row.lse).exp_()
            kept = self._dropped(weights, row.batch, row.rows, columns)
            if value_sum is not None:
                value_sum[row.batch, :, columns.left : columns.right] += gathered(kept, rule).mT @ above
            change = self._dropped(ungathered(above @ value.mT, rule), row.batch, row.rows, columns)
            change = change.sub_(row.centre).mul_(weights)
            for at in reversed(range(len(rule.steps))):
                change = rule.steps[at].pull(change, block.stages[at + 1], block.cells, parameter_sums[at])
            change = gathered(change * rule.scale, rule)
            if query_sum is not None:
                query_sum[row.batch, :, row.rows.top : row.rows.bottom] += ungathered(change @ key, rule)
            if key_sum is not None:
                key_sum[row.batch, :, columns.left : columns.right] += change.mT @ gathered(query, rule)

    def _block(self, query: Tensor, batch: slice, rows: Rows, columns: Columns) -> _Block | None:
        """The scores of one block, masked; None when the mask leaves nothing of it."""
        start, device = self.path.first_row, query.device
        cells = Cells(
            torch.arange(start + rows.top, start + rows.bottom, device=device)[:, None],
            torch.arange(columns.left, columns.right, device=device)[None, :],
            self.rule.sizes,
            batch,
        )
        forbidden = None
        if not (columns.whole and self.path.exact):
            seen = allowed(self.rule, cells)
            if not seen.any():
                return None
            forbidden = ~seen
        stages = block_scores(self.rule, query, self._columns(self.key, batch, columns), cells)
        scores = stages[-1]
        if self.rule.steps:
            scores = scores.clone()  # the caller works in place, and a step's result is needed for its derivative
        if forbidden is not None:
            scores.masked_fill_(forbidden, -math.inf)
        return _Block(cells, stages, scores)

    def _dropped(self, weights: Tensor, batch: slice, rows: Rows, columns: Columns) -> Tensor:
        """Weights after dropout; the same block loses the same weights each time it is computed."""
        if not self.rule.dropout:
            return weights
        place = (range(self.rule.sizes.batch)[batch].start * self.rule.sizes.queries + rows.top) * self.rule.sizes.keys
        generator = torch.Generator(weights.device).manual_seed((self.seed + place + columns.left) % 2**63)
        kept = torch.rand(weights.shape, generator=generator, device=weights.device) >= self.rule.dropout
        return weights * kept / (1.0 - self.rule.dropout)

    def _rows(self, tensor: Tensor, batch: slice, rows: Rows) -> Tensor:
        return tensor[batch, :, rows.top : rows.bottom].to(self.precise)

    def _columns(self, tensor: Tensor, batch: slice, columns: Columns) -> Tensor:
        return tensor[batch, :, columns.left : columns.right].to(self.precise)
