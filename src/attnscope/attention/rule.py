"""One attention without its numbers: shapes checked, and mask, scale, scores and dropout brought to one form.

In: what the caller passed. Out: a `Rule`, or an error that says what does not fit. A rule depends on shapes and never
on the values in query, key and value, so that what is planned for it can be kept. It decides nothing about engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask, Sizes
from attnscope.attention.scores import Score, Sinks, Step, take_apart
from attnscope.errors import ShapeError


class Signature(NamedTuple):
    """What is known of query, key and value without looking at their numbers."""

    query: torch.Size
    key: torch.Size
    value: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """Everything about an attention but the numbers in query, key and value."""

    signature: Signature
    sizes: Sizes
    mask: Mask
    scale: float
    steps: tuple[Step, ...]
    sinks: Sinks | None
    dropout: float

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """The tensors of the score steps, in order."""
        return tuple(step.parameter for step in self.steps)

    @property
    def key_heads(self) -> int:
        """How many heads keys and values have; query head h reads key head h // (heads // key_heads)."""
        return self.signature.key[-3] if len(self.signature.key) > 2 else 1

    @property
    def precise(self) -> torch.dtype:
        """The dtype of scores, sums and lse: fp32 at least."""
        return torch.promote_types(self.signature.dtype, torch.float32)


def in_autocast_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors as they are, and inside torch.autocast in its dtype, as F.scaled_dot_product_attention casts them.

    Autocast leaves fp64 and integers alone.
    """
    device = query.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Tensor) -> Tensor:
        wanted = tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == device
        return tensor.to(dtype) if wanted else tensor

    return cast(query), cast(key), cast(value)


def sign(query: Tensor, key: Tensor, value: Tensor) -> Signature:
    """The signature of three tensors that have one floating dtype and one device."""
    dtype, device = query.dtype, query.device
    alike = key.dtype == dtype == value.dtype and key.device == device == value.device
    if not alike or not dtype.is_floating_point:
        found = ", ".join(
            f"{name} {tensor.dtype} on {tensor.device}"
            for name, tensor in (("query", query), ("key", key), ("value", value))
        )
        raise ShapeError(f"attention: query, key and value need one floating dtype and one device; got {found}")
    return Signature(query.shape, key.shape, value.shape, dtype, device)


def make_rule(
    signature: Signature, *, mask: Mask, scale: float | None, score_mod: Score | None, dropout: float
) -> Rule:
    """Check the arguments of an attention and bring them to one form."""
    _check_shapes(signature)
    if not isinstance(mask, Mask):
        raise TypeError(
            f"attention: mask must be a mask object, got {type(mask).__name__}; "
            "wrap a boolean tensor with from_bool(attend=...) or from_bool(drop=...)"
        )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"attention: dropout is a probability below 1, got {dropout}")
    if scale is not None and not isinstance(scale, Real):
        kind = type(scale).__name__
        raise TypeError(f"attention: scale is a number, got {kind}; multiply the query by a scale that is learned")
    factor, steps, sinks = take_apart(score_mod)
    *batch, heads, queries, dim = (1, 1, *signature.query) if len(signature.query) < 4 else signature.query
    sizes = Sizes(math.prod(batch), heads, queries, keys=signature.key[-2])
    for part in (mask, *steps, *(() if sinks is None else (sinks,))):
        part.check(sizes)
    scale = factor * (1.0 / math.sqrt(dim) if scale is None else float(scale))
    return Rule(signature=signature, sizes=sizes, mask=mask, scale=scale, steps=steps, sinks=sinks, dropout=dropout)


def in_four(tensor: Tensor) -> Tensor:
    """(..., heads, positions, dim) as (batch, heads, positions, dim); a view where strides allow."""
    if tensor.dim() == 4:
        return tensor
    if tensor.dim() < 4:
        return tensor[(None,) * (4 - tensor.dim())]
    return tensor.flatten(0, -4)


def _check_shapes(signature: Signature) -> None:
    query, key, value = signature[:3]

    def refuse(what: str) -> None:
        found = f"query {tuple(query)}, key {tuple(key)}, value {tuple(value)}"
        raise ShapeError(f"attention: {what}; got {found}")

    if len(query) < 2 or len(query) != len(key) or len(query) != len(value):
        refuse("query, key and value are (..., head, position, dim) with equally many dimensions, at least two")
    if query[-1] != key[-1] or not query[-1]:
        refuse("query and key need the same head width, above 0")
    if key[:-1] != value[:-1]:
        refuse("key and value need the same leading shape and the same number of positions")
    if query[:-3] != key[:-3]:
        refuse("query and key need the same batch shape; use expand() to share keys between batch rows")
    if len(query) > 2 and (not key[-3] or query[-3] % key[-3]):
        refuse("the number of query heads must be a multiple of the number of key heads")
