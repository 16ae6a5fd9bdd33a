"""Calls the private torch operators behind the fused backend; no other file does.

`flash_attention` and `flash_attention_backward` bring tensors into the form that the operator of their device takes,
and its results into one form. `is_causal` aligns to the upper left corner. The backward takes the lse and output of the
*whole* row, so a row may be computed in parts. The lse of a row without keys is undefined (0.0 on the CPU), and the lse
has no gradient. `operators` is the table of what each operator takes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention.operators import FLASH, OPERATORS, Operator, find_operator, platform_of


def is_functorch_active() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) is active; the private operators do not support them."""
    return torch._C._are_functorch_transforms_active()


def fit_head_dim(device: torch.device, dtype: torch.dtype, dim: int) -> int:
    """Return the smallest head dim from `dim` on that the operators of a device take."""
    multiple = max(OPERATORS[platform_of(device)][-1].alignment // dtype.itemsize, 1)
    return -(-dim // multiple) * multiple


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, scale: float, attn_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return output and lse of one fused call; query (batch, heads, queries, dim), key and value of the same dim.

    `attn_mask` is added to the scores, in the dtype of the query: (queries, keys), or of 4 dimensions that broadcast.
    """
    if query.is_cpu:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
        )
    queries, keys = query.shape[2], key.shape[2]
    off_corner = is_causal and queries != keys
    has_bias = attn_mask is not None
    operator = find_operator(query.device, query.dtype, query.shape[-1], has_bias=has_bias, off_corner=off_corner)
    assert operator is not None, "the plan chooses the fused backend only where there is an operator"
    query, key, value, bias = _fit_inputs(operator, query, key, value, attn_mask)
    if operator.title == FLASH.title:
        output, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, is_causal, False, scale=scale
        )
    else:
        output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, 0.0, is_causal, scale=scale
        )
    return output, lse[..., :queries]


def flash_attention_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    is_causal: bool,
    scale: float,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value from some of the keys, given output and lse over all of them."""
    if query.is_cpu:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output, query, key, value, output, lse, 0.0, is_causal, attn_mask=attn_mask, scale=scale
        )
    operator = OPERATORS[platform_of(query.device)][-1]
    key_heads, (_, heads, queries, _) = key.shape[1], query.shape
    query, key, value, bias = _fit_inputs(operator, query, key, value, attn_mask)
    seed = torch.empty((), dtype=torch.long, device=query.device)  # of dropout, which is 0
    grad_query, grad_key, grad_value, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        _rows_before_heads(grad_output),
        query,
        key,
        value,
        bias,
        _rows_before_heads(output),
        F.pad(lse.float(), (0, -queries % operator.lse_rows), value=math.inf).contiguous(),
        seed,
        seed,
        0.0,
        [True, True, True, False],
        is_causal,
        scale=scale,
    )
    if key_heads == heads:
        return grad_query, grad_key, grad_value
    group = (key_heads, heads // key_heads)
    return grad_query, grad_key.unflatten(1, group).sum(2), grad_value.unflatten(1, group).sum(2)


def _fit_inputs(
    operator: Operator, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return query, key, value and bias with the heads, strides and shapes that the operator takes."""
    group = query.shape[1] // key.shape[1] if operator.expands else 1
    align, is_same = max(operator.alignment // query.element_size(), 1), value is key
    query, key = _fit_heads(query, 1, align), _fit_heads(key, group, align)
    value = key if is_same else _fit_heads(value, group, align)  # of statistics, the keys are the values
    if attn_mask is None:
        return query, key, value, None
    bias = attn_mask[(None,) * (4 - attn_mask.dim())]
    bias = bias if _is_aligned(bias, align) else _align_rows(bias, align)
    return query, key, value, bias.expand(*query.shape[:3], key.shape[2]) if operator.expands else bias


def _is_aligned(tensor: Tensor, align: int) -> bool:
    """Whether the last axis is contiguous, and the start and all other strides are multiples of `align` numbers."""
    *outer, last = tensor.stride()
    starts_aligned = tensor.storage_offset() % align == 0
    return last == 1 and starts_aligned and all(stride % align == 0 for stride in outer)


def _fit_heads(tensor: Tensor, group: int, align: int) -> Tensor:
    """Return the tensor with each head repeated `group` times, and aligned."""
    tensor = tensor if group == 1 else tensor.repeat_interleave(group, dim=1)
    return tensor if _is_aligned(tensor, align) else tensor.clone(memory_format=torch.contiguous_format)


def _align_rows(tensor: Tensor, align: int) -> Tensor:
    """Return a copy whose rows start at multiples of `align` numbers."""
    length = tensor.shape[-1]
    room = tensor.new_empty(*tensor.shape[:-1], -(-length // align) * align)
    room[..., :length] = tensor
    return room[..., :length]


def _rows_before_heads(tensor: Tensor) -> Tensor:
    """Return the tensor as (batch, queries, heads, dim) in memory; the backward reads no other strides for its rows."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)
