"""Attention by the fused kernels of torch, for every mask that is a short list of rectangles.

In: query, key and value, and the blocks that a mask was split into. Each block is one kernel call; where rows are
covered by several blocks, the partial outputs are merged by their lse. The backward calls the kernel's backward for
each block with the lse and output of the whole row, which is exact. Memory: O(n), whatever the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import kernels
from attnscope.attention.block_sizes import block_sizes
from attnscope.attention.first_order import first_order
from attnscope.attention.kernel_blocks import BlockKind, KernelBlock


class BatchBlocks(NamedTuple):
    """Batch rows that have the same blocks."""

    batch: slice
    blocks: tuple[KernelBlock, ...]


class FusedPlan(NamedTuple):
    """All kernel calls of one attention.

    `bias` (batch or 1, heads or 1, keys) is added to the scores of a key for all queries; -inf masks the key.
    """

    groups: tuple[BatchBlocks, ...]
    scale: float
    bias: Tensor | None
    single_call: BlockKind | None  # set if one call over all batch rows, queries and keys is enough


def make_fused_plan(
    groups: tuple[BatchBlocks, ...], queries: int, keys: int, scale: float, bias: Tensor | None = None
) -> FusedPlan:
    """Return the plan for these blocks of a queries x keys matrix."""
    single_call = None
    if bias is None and len(groups) == 1 and groups[0].batch == slice(None) and len(groups[0].blocks) == 1:
        block = groups[0].blocks[0]
        whole = block.repeats == 1 and block.height == queries and block.width == keys
        single_call = block.kind if whole and block.kind is not BlockKind.DENSE else None
    return FusedPlan(groups, scale, bias, single_call)


def key_bias(key_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a key mask (batch or 1, keys) into a bias (batch or 1, 1, keys): 0 where True, -inf where False."""
    return torch.zeros(key_mask.shape, dtype=dtype, device=key_mask.device).masked_fill_(~key_mask, -math.inf)[:, None]


def fused_attention(plan: FusedPlan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and lse; both are differentiable once."""
    assert query.shape[0] == key.shape[0] == value.shape[0], "the kernel does not check, and would read past the end"
    assert query.shape[1] % key.shape[1] == 0 and key.shape[1] == value.shape[1], "nor does it check heads"
    value_dim = value.shape[-1]
    plan, query, key, value = fit_to_kernel(plan, query, key, value)
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        output, lse = _FusedAttention.apply(query, key, value, plan)
    else:
        output, lse = forward(plan, query, key, value)
        if output.dtype != query.dtype:  # a call that does nothing costs tens of microseconds after a kernel
            output = output.to(query.dtype)
    return (output if value_dim == output.shape[-1] else output[..., :value_dim]), lse


def fit_to_kernel(
    plan: FusedPlan, query: Tensor, key: Tensor, value: Tensor
) -> tuple[FusedPlan, Tensor, Tensor, Tensor]:
    """Return the same attention with a scale above 0 and one head dim for query, key and value, as the kernel has."""
    if plan.scale <= 0:  # the kernel's causal mask is -inf before the scale
        query, plan = query * plan.scale, plan._replace(scale=1.0)
    dim = max(query.shape[-1], value.shape[-1])  # columns of zeros change nothing
    dim = dim if query.is_cpu else kernels.fit_head_dim(query.device, query.dtype, dim)
    return plan, pad_head_dim(query, dim), pad_head_dim(key, dim), pad_head_dim(value, dim)


def pad_head_dim(tensor: Tensor, dim: int) -> Tensor:
    """Pad the last dimension with zeros to `dim`, and make it contiguous."""
    if tensor.shape[-1] < dim:
        return F.pad(tensor, (0, dim - tensor.shape[-1]))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, plan: FusedPlan):
        output, lse = forward(plan, query, key, value)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        def compute(grad_output, grad_lse, query, key, value, output, lse):
            return backward(ctx.plan, SavedTensors(query, key, value, output, lse), grad_output, grad_lse)

        return *first_order("fused", compute, *gradients, *ctx.saved_tensors), None


class SavedTensors(NamedTuple):
    """What the backward needs from the forward; output and lse are those of whole rows, over all of their keys."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    lse: Tensor


def forward(plan: FusedPlan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and lse of tensors from `fit_to_kernel`; a merged output is at least fp32."""
    if plan.single_call is not None:
        is_causal = plan.single_call is BlockKind.CAUSAL
        return kernels.flash_attention(query, key, value, is_causal=is_causal, scale=plan.scale)
    dtype = torch.promote_types(query.dtype, torch.float32)
    output = torch.zeros_like(query, dtype=dtype)
    lse = empty_lse(query)
    for group in plan.groups:
        row_stop = 0
        for block in group.blocks:
            first, row_stop = block.region.top >= row_stop, max(row_stop, block.row_stop)
            for call in _kernel_calls(plan, group, block, query):
                partial = call.forward(call.rows(query), call.columns(key), call.columns(value), plan.scale)
                merge_partials(call.rows(output), call.rows(lse), *partial, first=first)
    return output, lse.to(dtype)


def empty_lse(query: Tensor) -> Tensor:
    """Return -inf in fp64 for each query row: the lse before `merge_partials` has merged any keys."""
    return torch.full(query.shape[:-1], -math.inf, dtype=torch.float64, device=query.device)


def merge_partials(output: Tensor, lse: Tensor, partial: Tensor, partial_lse: Tensor, *, first: bool) -> None:
    """Merge attention over more keys into `output` and `lse`, in place.

    Rounding lse to fp32 at each merge would cost eps * |lse| each time. So `lse` is fp64, and the merge uses distances
    from the larger of both, which are near 0 where they matter.

    Args:
        output: The output so far, (..., rows, dim), at least fp32.
        lse: The lse so far, (..., rows), from `empty_lse`.
        partial: The output over the other keys, (..., rows, dim).
        partial_lse: The lse over the other keys, (..., rows).
        first: Whether these rows have no keys yet, so that a copy is enough.
    """
    if first:
        output.copy_(partial)
        lse.copy_(partial_lse)
        return
    base = torch.maximum(lse, partial_lse)
    base.masked_fill_(base == -math.inf, 0.0)
    old, new = (lse - base).to(output.dtype), (partial_lse - base).to(output.dtype)
    total = torch.logaddexp(old, new)
    finite = total.masked_fill(total == -math.inf, 0.0)  # a row without keys so far: both shares are exp(-inf) = 0
    output.mul_((old - finite).exp_()[..., None]).addcmul_(partial.to(output), (new - finite).exp_()[..., None])
    lse.copy_(base + total)


def backward(
    plan: FusedPlan, saved: SavedTensors, grad_output: Tensor | None, grad_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value from `fit_to_kernel`; the keys may be some of those of whole rows."""
    saved = saved._replace(lse=saved.lse.masked_fill(saved.lse == -math.inf, 0.0))  # no key: exp(-inf - 0) = 0
    if grad_output is not None and grad_output.stride(-1) != 1:
        grad_output = grad_output.contiguous()
    if plan.single_call is not None and grad_lse is None and grad_output is not None:
        is_causal = plan.single_call is BlockKind.CAUSAL
        return kernels.flash_attention_backward(grad_output, *saved, is_causal=is_causal, scale=plan.scale)
    input_dtype, dtype = saved.query.dtype, saved.lse.dtype
    # The kernel rounds each part to the dtype of its inputs, and a sum of many rounded parts is worse than one.
    saved = SavedTensors(*(tensor.to(dtype) for tensor in saved))
    grad_output = None if grad_output is None else grad_output.to(dtype)
    query, key, value = saved.query, saved.key, saved.value
    sums = tuple(torch.zeros_like(tensor) for tensor in (query, key, value))
    for group in plan.groups:
        for block in group.blocks:
            for call in _kernel_calls(plan, group, block, query):
                part = SavedTensors(
                    call.rows(query),
                    call.columns(key),
                    call.columns(value),
                    call.rows(saved.output),
                    call.rows(saved.lse),
                )
                if grad_output is not None:
                    call.accumulate(sums, call.backward(call.rows(grad_output), part, plan.scale))
                if grad_lse is not None:
                    call.accumulate(sums, _lse_backward(call, call.rows(grad_lse), part, plan.scale))
    return sums[0].to(input_dtype), sums[1].to(input_dtype), sums[2].to(input_dtype)


def _lse_backward(call: _KernelCall, grad_lse: Tensor, part: SavedTensors, scale: float) -> tuple[Tensor, Tensor, None]:
    """Return gradients of lse = logsumexp(scale * q.k): scale * P @ K for the queries, its transpose for the keys.

    Both are attention with the keys as values: a forward call, and the value gradient of a backward call.
    """
    weight = grad_lse[..., None] * scale
    mean_key, part_lse = call.forward(part.query, part.key, part.key, scale)
    share = (part_lse - part.lse).exp_()[..., None]  # the share of this block in the softmax of the whole row
    weighted = (weight * part.query).to(part.query.dtype)
    as_values = part._replace(value=part.key, output=torch.zeros_like(part.query))
    return weight * share * mean_key, call.backward(weighted, as_values, scale)[2], None


class _KernelCall(NamedTuple):
    """One kernel call: its rows and columns, and how they are masked."""

    block: KernelBlock
    batch: slice | int  # an int where repeats of the block take the place of the batch
    attn_mask: Tensor | None
    has_keys: Tensor | None  # (batch, heads or 1, rows): whether a row has a key here; None where all have

    def rows(self, tensor: Tensor) -> Tensor:
        return _slice_positions(tensor, self.batch, self.block.region.top, self.block.height, self.block)

    def columns(self, tensor: Tensor) -> Tensor:
        return _slice_positions(tensor, self.batch, self.block.region.left, self.block.width, self.block)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        is_causal = self.block.kind is BlockKind.CAUSAL
        output, lse = kernels.flash_attention(
            query, key, value, is_causal=is_causal, scale=scale, attn_mask=self.attn_mask
        )
        if self.has_keys is None:
            return output, lse
        return output.masked_fill(~self.has_keys[..., None], 0.0), lse.masked_fill(~self.has_keys, -math.inf)

    def backward(self, grad_output: Tensor, saved: SavedTensors, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        is_causal = self.block.kind is BlockKind.CAUSAL
        return kernels.flash_attention_backward(
            grad_output, *saved, is_causal=is_causal, scale=scale, attn_mask=self.attn_mask
        )

    def accumulate(self, sums: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]) -> None:
        """Add the gradients of this call to those of the whole tensors."""
        query, key, value = gradients
        assert query is not None and key is not None
        self.rows(sums[0]).add_(query)
        # Repeats may share columns, and sums into shared memory get lost. Those that are `apart` do not share any.
        apart = 1 if self.block.repeats == 1 else -(-self.block.width // self.block.step)
        for first in range(min(apart, self.block.repeats)):
            turn = slice(first, None, apart) if self.block.repeats > 1 else slice(None)
            self.columns(sums[1])[turn].add_(key[turn])
            if value is not None:
                self.columns(sums[2])[turn].add_(value[turn])


def _kernel_calls(plan: FusedPlan, group: BatchBlocks, block: KernelBlock, query: Tensor) -> Iterator[_KernelCall]:
    """Yield the calls of one block: one for all batch rows, or one per batch row if the block has repeats."""
    allowed = _region_cells(block, query.device) if block.kind is BlockKind.DENSE else None
    rows = range(query.shape[0])[group.batch]
    for batch in [group.batch] if block.repeats == 1 else rows:
        bias = None if plan.bias is None else _block_bias(plan.bias, batch, block).to(query.dtype)
        attn_mask = _additive_mask(allowed, bias, query.dtype)
        yield _KernelCall(block, batch, attn_mask, _rows_with_keys(block, allowed, bias))


def _block_bias(bias: Tensor, batch: slice | int, block: KernelBlock) -> Tensor:
    """Return the bias of a block's columns, (batch or 1, heads or 1, 1, columns)."""
    rows = batch if bias.shape[0] > 1 else (slice(None) if isinstance(batch, slice) else 0)
    return _slice_positions(bias[..., None], rows, block.region.left, block.width, block).transpose(-1, -2)


def _additive_mask(allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return what the kernel adds to the scores of a block: the bias, and -inf outside of its region."""
    if allowed is None:
        return bias
    if bias is None:
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -math.inf)
    return bias.masked_fill(~allowed, -math.inf)


def _rows_with_keys(block: KernelBlock, allowed: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return which rows have an unmasked key in this block, (batch, heads or 1, rows); None if all have.

    The kernel's lse is wrong in the other rows. Where the host should not wait for the answer, it is never None.
    """
    if bias is None:
        return None
    unmasked = bias > -math.inf
    if allowed is not None:
        has_keys = (allowed & unmasked).any(-1)
    elif block.kind is BlockKind.FULL:
        has_keys = unmasked.any(-1).expand(-1, -1, block.height)
    else:
        last_key = torch.arange(block.height, device=bias.device).clamp(max=block.width - 1)
        has_keys = unmasked.cumsum(-1)[..., 0, last_key] > 0
    return None if block_sizes(bias.device).can_read and has_keys.all() else has_keys


def _region_cells(block: KernelBlock, device: torch.device) -> Tensor:
    """Return which cells of a dense block belong to its region, (rows, columns)."""
    region = block.region
    rows = torch.arange(region.top, region.bottom, device=device)[:, None]
    distance = torch.arange(region.left, region.right, device=device)[None, :] - rows
    return (distance >= region.lowest) & (distance <= region.highest)


def _slice_positions(tensor: Tensor, batch: slice | int, start: int, length: int, block: KernelBlock) -> Tensor:
    """View positions [start, start + length) of (batch, heads, positions, ...); with an int, those of all repeats."""
    if isinstance(batch, slice):
        return tensor[batch, :, start : start + length]
    stop = start + (block.repeats - 1) * block.step + length
    windows = tensor[batch, :, start:stop].unfold(1, length, block.step)  # (heads, repeats, ..., length)
    return windows.transpose(0, 1) if windows.dim() == 3 else windows.permute(1, 0, 3, 2)
