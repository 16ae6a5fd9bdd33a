"""The description of one attention call: checked shapes, mask, scale, score modifiers and dropout in one form.

In: what the caller passed. Out: an `AttentionSpec`, or an error that says what does not fit. A spec depends on shapes
and never on the values in query, key and value, so plans made for it can be cached. It does not choose a backend.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask, Sizes
from attnscope.attention.scores import ScoreMod, ScoreStep, Sinks, split_score_mod
from attnscope.errors import ShapeError


class Signature(NamedTuple):
    """Shapes, dtype and device of query, key and value."""

    query: torch.Size
    key: torch.Size
    value: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionSpec:
    """Everything about an attention call except the values in query, key and value."""

    signature: Signature
    sizes: Sizes
    mask: Mask
    scale: float
    steps: tuple[ScoreStep, ...]
    sinks: Sinks | None
    dropout: float

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """The tensors of the score steps, in order."""
        return tuple(step.parameter for step in self.steps)

    @property
    def num_kv_heads(self) -> int:
        """The number of key and value heads; query head h reads key head h // (heads // num_kv_heads)."""
        return self.signature.key[-3] if len(self.signature.key) > 2 else 1

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of scores, sums and lse: at least fp32."""
        return torch.promote_types(self.signature.dtype, torch.float32)


def to_autocast_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast the tensors as F.scaled_dot_product_attention does inside torch.autocast; outside, return them unchanged.

    Autocast does not change fp64 and integers.
    """
    device = query.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Tensor) -> Tensor:
        is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == device
        return tensor.to(dtype) if is_cast else tensor

    return cast(query), cast(key), cast(value)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context outside of any autocast; some devices, such as "meta", do not have it."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def signature_of(query: Tensor, key: Tensor, value: Tensor) -> Signature:
    """Return the signature of three tensors; they must have the same floating-point dtype and the same device."""
    dtype, device = query.dtype, query.device
    alike = key.dtype == dtype == value.dtype and key.device == device == value.device
    if not alike or not dtype.is_floating_point:
        found = ", ".join(
            f"{name} {tensor.dtype} on {tensor.device}"
            for name, tensor in (("query", query), ("key", key), ("value", value))
        )
        raise ShapeError(
            f"attention: expected query, key and value with one floating dtype and on one device, got {found}"
        )
    return Signature(query.shape, key.shape, value.shape, dtype, device)


def make_spec(
    signature: Signature, *, mask: Mask, scale: float | None, score_mod: ScoreMod | None, dropout: float
) -> AttentionSpec:
    """Check the arguments of an attention call and return its spec."""
    _check_shapes(signature)
    if not isinstance(mask, Mask):
        raise TypeError(
            f"attention: expected mask to be a mask object, got {type(mask).__name__}; "
            "wrap a boolean tensor with from_bool(attend=...) or from_bool(drop=...)"
        )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"attention: expected 0 <= dropout < 1, got {dropout}")
    if scale is not None and not isinstance(scale, Real):
        kind = type(scale).__name__
        raise TypeError(f"attention: expected scale to be a number, got {kind}; multiply the query by a learned scale")
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"attention: expected a finite scale, got {scale}")
    factor, steps, sinks = split_score_mod(score_mod)
    *batch, heads, queries, dim = (1, 1, *signature.query) if len(signature.query) < 4 else signature.query
    sizes = Sizes(math.prod(batch), heads, queries, keys=signature.key[-2])
    for part in (mask, *steps, *(() if sinks is None else (sinks,))):
        part.check(sizes)
    scale = factor * (1.0 / math.sqrt(dim) if scale is None else float(scale))
    return AttentionSpec(
        signature=signature, sizes=sizes, mask=mask, scale=scale, steps=steps, sinks=sinks, dropout=dropout
    )


def to_4d(tensor: Tensor) -> Tensor:
    """Reshape (..., heads, positions, dim) to (batch, heads, positions, dim); a view where strides allow."""
    if tensor.dim() == 4:
        return tensor
    if tensor.dim() < 4:
        return tensor[(None,) * (4 - tensor.dim())]
    return tensor.flatten(0, -4)


def _check_shapes(signature: Signature) -> None:
    query, key, value = signature[:3]

    def fail(expected: str) -> None:
        found = f"query {tuple(query)}, key {tuple(key)}, value {tuple(value)}"
        raise ShapeError(f"attention: expected {expected}; got {found}")

    if len(query) < 2 or len(query) != len(key) or len(query) != len(value):
        fail("query, key and value (..., heads, positions, dim) with the same number of dimensions, at least 2")
    if query[-1] != key[-1] or not query[-1]:
        fail("query and key with the same head dim, above 0")
    if key[:-1] != value[:-1]:
        fail("key and value with the same leading shape and the same number of positions")
    if query[:-3] != key[:-3]:
        fail("query and key with the same batch shape; use expand() to share keys between batch rows")
    if len(query) > 2 and (not key[-3] or query[-3] % key[-3]):
        fail("a number of query heads that is a multiple of the number of key heads")
