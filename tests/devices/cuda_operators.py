"""The fused attention operators of CUDA, written from their source with plain torch on the CPU.

They refuse what CUDA refuses (dtype, head dim, heads, alignment, form of the bias) and return what CUDA returns: the
output as (batch, queries, heads, dim) in memory, the lse of memory-efficient attention padded to 32 rows with +inf,
flash attention causal from the lower right. Numbers that CUDA leaves undefined are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
LSE_ROWS = 32
MAX_FLASH_DIM = 256


def find(func: Any, given: Sequence[Tensor]) -> Callable[..., Any]:
    """The operator that runs for tensors of these devices."""
    name = func._schema.name.removeprefix("aten::")
    if not any(tensor.device.type == "cuda" for tensor in given):
        return func
    if name.endswith(("_for_cpu", "_for_cpu_backward")):
        _refuse(f"aten::{name} takes tensors on the cpu")
    if name == "_fused_sdp_choice":
        return lambda *_, **__: 0  # the unfused one
    return EMULATED.get(name, func)


def efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aten::_scaled_dot_product_efficient_attention: causal from the upper left, with a bias of the query's dtype."""
    _check_efficient(query, key, value, attn_bias)
    scores = _scores(query, key, attn_bias, is_causal, scale)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()  # NaN in rows without keys
    output = (weights.to(query.dtype).double() @ value.double()).to(query.dtype)
    padded = torch.full((*lse.shape[:2], _round_up(lse.shape[2], LSE_ROWS)), math.inf)  # fp32
    padded[..., : lse.shape[2]] = lse.masked_fill(lse == -math.inf, math.nan)
    return _rows_first(output), padded, *_seeds()


def efficient_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """aten::_scaled_dot_product_efficient_attention_backward.

    It has no stride for the rows of `out`: it reads them heads * dim numbers apart.
    """
    _check_efficient(query, key, value, attn_bias)
    batch, heads, queries, _ = query.shape
    dim = value.shape[-1]
    if logsumexp.shape != (batch, heads, _round_up(queries, LSE_ROWS)) or logsumexp.dtype != torch.float32:
        _refuse(f"lse {tuple(logsumexp.shape)} {logsumexp.dtype}, padded to {LSE_ROWS} rows by its forward")
    if grad_out.dtype != query.dtype or out.dtype != query.dtype:
        _refuse(f"gradients and output of another dtype than the query: {grad_out.dtype}, {out.dtype}")
    memory = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0).double()
    memory = torch.nn.functional.pad(memory, (0, batch * heads * queries * dim), value=math.nan)
    read = memory.as_strided(out.shape, (out.stride(0), out.stride(1), heads * dim, 1), out.storage_offset())
    grad, lse = grad_out.double(), logsumexp[..., :queries, None]
    weights = (_scores(query, key, attn_bias, is_causal, scale) - lse).exp()
    delta = (grad * read).sum(-1, keepdim=True)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    grad_scores = weights * (grad @ value.double().mT - delta) * factor
    found = grad_scores @ key.double(), grad_scores.mT @ query.double(), weights.mT @ grad
    return *(_rows_first(one.to(query.dtype)) for one in found), None


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention: 16-bit, no bias, grouped heads, causal from the lower right."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dtype not in HALF:
            _refuse(f"flash attention of {tensor.dtype}")
        if tensor.shape[-1] != query.shape[-1] or tensor.shape[-1] % 8 or tensor.shape[-1] > MAX_FLASH_DIM:
            _refuse(f"flash attention with a head dim of {tensor.shape[-1]} ({name})")
        if tensor.stride(-1) != 1:
            _refuse(f"{name} with a last stride of {tensor.stride(-1)}")
    if query.shape[1] % key.shape[1]:
        _refuse(f"{query.shape[1]} heads on {key.shape[1]}")
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    scores = _scores(query, key, None, False, scale)
    if is_causal:
        rows, columns = scores.shape[-2:]
        scores = scores.masked_fill(~torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows), -math.inf)
    lse = scores.logsumexp(-1)
    output = ((scores - lse[..., None]).exp().to(query.dtype).double() @ value.double()).to(query.dtype)
    nothing = torch.empty(0)
    lengths = query.shape[2], key.shape[2]
    return _rows_first(output), lse.float(), None, None, *lengths, *_seeds(), nothing


def _check_efficient(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> None:
    if query.dtype not in (torch.float32, *HALF):
        _refuse(f"memory-efficient attention of {query.dtype}")
    if not query.shape[1] == key.shape[1] == value.shape[1]:
        _refuse(f"{query.shape[1]} heads on {key.shape[1]}")
    align = 16 // query.element_size()
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if 0 in tensor.shape:
            _refuse(f"an empty {name}")
        if tensor.shape[-1] % align:
            _refuse(f"{name} with a head dim of {tensor.shape[-1]}, not a multiple of {align}")
        _check_aligned(name, tensor, align, dims=(1, 2))
    if bias is None:
        return
    expected = (*query.shape[:3], key.shape[2])
    if bias.dtype != query.dtype or tuple(bias.shape) != expected:
        _refuse(f"a bias {tuple(bias.shape)} {bias.dtype}, not {expected} {query.dtype}")
    _check_aligned("bias", bias, align, dims=(0, 1, 2))


def _check_aligned(name: str, tensor: Tensor, align: int, dims: Sequence[int]) -> None:
    if tensor.stride(-1) != 1:
        _refuse(f"{name} with a last stride of {tensor.stride(-1)}")
    if any(tensor.shape[dim] > 1 and tensor.stride(dim) % align for dim in dims):
        _refuse(f"{name} with strides {tensor.stride()}, not multiples of {align}")
    if tensor.storage_offset() % align:
        _refuse(f"{name} that starts at number {tensor.storage_offset()} of its memory, not a multiple of {align}")


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    """The scores, causal from the upper left; CUDA computes them in fp32."""
    scores = query.double() @ key.double().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias.double()
    if not is_causal:
        return scores
    return scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)


def _rows_first(tensor: Tensor) -> Tensor:
    """The same tensor, in memory as (batch, rows, heads, dim)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _seeds() -> tuple[Tensor, Tensor]:
    return torch.empty((), dtype=torch.long), torch.empty((), dtype=torch.long)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _refuse(what: str) -> None:
    raise RuntimeError(f"CUDA does not take {what}")


EMULATED = {
    "_scaled_dot_product_efficient_attention": efficient,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "_scaled_dot_product_flash_attention": flash,
}
