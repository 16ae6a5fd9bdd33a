"""Convert calls of PyTorch's attention functions to `Call` objects.

In: the arguments of F.scaled_dot_product_attention, of F.multi_head_attention_forward (which nn.MultiheadAttention and
nn.Transformer end in), or of AttnScope's own attend. Out: a `Call`, or UnsupportedError.
Does not know: modules, traces. Memory: O(n), and that of a mask tensor if the model passes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import Causal, Full, attend
from attnscope.attention.algebra import Mask
from attnscope.attention.scores import ScoreMod
from attnscope.attention.spec import to_4d, to_autocast_dtype
from attnscope.errors import UnsupportedError
from attnscope.recording.call import Call
from attnscope.recording.hooks.mask_tensors import intersect, read_mask


def find_reader(function: Callable) -> Callable[..., Call] | None:
    """The function that turns named arguments into a call; None unless `function` computes attention."""
    return _READERS.get(function)


def bind_arguments(function: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an attention function, all by name."""
    given = _SIGNATURES[function].bind(*args, **kwargs)
    given.apply_defaults()
    return given.arguments


def _read_scaled_dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - weights are recorded before dropout
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001 - follows from the numbers of heads
) -> Call:
    """Torch aligns a causal mask top-left, and takes it together with a mask tensor only in some of its kernels."""
    if attn_mask is not None and query.dim() == attn_mask.dim() == 3:
        attn_mask = attn_mask[:, None]
    query, key, value = to_autocast_dtype(query, key, value)
    query, key, value = _broadcast(*(to_batch_and_head(tensor) for tensor in (query, key, value)))
    queries, keys = query.shape[2], key.shape[2]
    mask, score = read_mask(attn_mask, query, key)
    if is_causal:
        causal = Causal() if queries == keys else Causal(0)
        mask = intersect(mask, causal)
    return _align_end(Call(query=query, key=key, value=value, mask=mask, scale=scale, score_mod=score))


def _broadcast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcast batch rows and heads; grouped key heads stay grouped."""
    batch = max(tensor.shape[0] for tensor in (query, key, value))
    kv_heads = max(key.shape[1], value.shape[1])
    heads = max(query.shape[1], kv_heads)

    def expand(tensor: Tensor, count: int) -> Tensor:
        return tensor.expand(batch, count if tensor.shape[1] == 1 else -1, -1, -1)

    return expand(query, heads), expand(key, kv_heads), expand(value, kv_heads)


def _read_multi_head(**of: Any) -> Call:
    """Project queries and keys as the function does; its boolean masks are True for masked keys."""
    if of["static_k"] is not None or of["static_v"] is not None:
        raise UnsupportedError(
            "record: F.multi_head_attention_forward was called with static_k or static_v, which are not supported; "
            "pass keys and values through the projections"
        )
    query, key, value = of["query"], of["key"], of["value"]
    batched = query.dim() == 3
    cross = key is not query
    heads = of["num_heads"]
    inputs = [tensor if batched else tensor.unsqueeze(1) for tensor in (query, key, value)]
    query, key, value = (_project(tensor, index, of) for index, tensor in enumerate(inputs))
    query, key, value = (tensor.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for tensor in (query, key, value))
    padding, mask, score = of["key_padding_mask"], *_multi_head_mask(of, query, key)
    if padding is not None:
        keep = padding if batched else padding[None]
        extra, added = read_mask(~keep[:, None, None] if keep.dtype == torch.bool else keep[:, None, None], query, key)
        mask, score = intersect(mask, extra), added if score is None else score if added is None else score + added
    return _align_end(Call(query=query, key=key, value=value, mask=mask, scale=None, score_mod=score, cross=cross))


def _project(tensor: Tensor, index: int, of: Mapping[str, Any]) -> Tensor:
    """Project (positions, batch, hidden) as query (0), key (1) or value (2)."""
    if of["use_separate_proj_weight"]:
        weight = (of["q_proj_weight"], of["k_proj_weight"], of["v_proj_weight"])[index]
    else:
        weight = of["in_proj_weight"].chunk(3)[index]
    bias = None if of["in_proj_bias"] is None else of["in_proj_bias"].chunk(3)[index]
    extra = (None, of["bias_k"], of["bias_v"])[index]
    if extra is not None or (index and of["add_zero_attn"]):
        raise UnsupportedError(
            "record: nn.MultiheadAttention with add_bias_kv or add_zero_attn adds keys that are not tokens; build it "
            "without them to record it"
        )
    return F.linear(tensor, weight, bias)


def _multi_head_mask(of: Mapping[str, Any], query: Tensor, key: Tensor) -> tuple[Mask, ScoreMod | None]:
    given: Tensor | None = of["attn_mask"]
    if given is None:
        return Full(), None
    if given.dim() == 3:  # (batch * heads, queries, keys)
        given = given.unflatten(0, (-1, of["num_heads"]))
    return read_mask(~given if given.dtype == torch.bool else given, query, key)


def _read_attend(**of: Any) -> Call:
    tensors = to_autocast_dtype(*(of[name] for name in ("query", "key", "value")))
    query, key, value = map(to_4d, tensors)
    mask = Full() if of["mask"] is None else of["mask"]
    return _align_end(Call(query=query, key=key, value=value, mask=mask, scale=of["scale"], score_mod=of["score_mod"]))


def _align_end(call: Call) -> Call:
    """Align queries with the end of the keys, as with a KV cache; if there are more queries, with their start."""
    return replace(call, row=max(call.key.shape[2] - call.query.shape[2], 0))


def to_batch_and_head(tensor: Tensor) -> Tensor:
    """Add missing batch and head axes; raises UnsupportedError for more than four axes."""
    if tensor.dim() == 3:
        return tensor[:, None]
    if tensor.dim() == 2:
        return tensor[None, None]
    if tensor.dim() > 4:
        raise UnsupportedError(
            "record: F.scaled_dot_product_attention: expected (batch, heads, positions, dim), got "
            f"{tuple(tensor.shape)}; flatten the leading axes before the call"
        )
    return tensor


_READERS: dict[Callable, Callable[..., Call]] = {
    F.scaled_dot_product_attention: _read_scaled_dot_product,
    F.multi_head_attention_forward: _read_multi_head,
    attend: _read_attend,
}

_SIGNATURES = {
    F.scaled_dot_product_attention: inspect.signature(_read_scaled_dot_product),  # a builtin without a signature
    F.multi_head_attention_forward: inspect.signature(F.multi_head_attention_forward),
    attend: inspect.signature(attend),
}
