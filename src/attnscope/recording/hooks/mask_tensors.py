"""Convert mask tensors of a model to `Mask` and `Bias`.

In: a boolean or additive mask that broadcasts to (batch, heads, queries, keys). Out: a `Mask`, and a `Bias` if the
tensor also changes scores. Causal and padding masks are recognised, so that no n x n tensor is stored for them.
Memory: O(1) or that of the tensor, and a block of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from attnscope.attention.algebra import Mask
from attnscope.attention.masks import Causal, Full, Padding, Window, from_bool
from attnscope.attention.scores import Bias, ScoreStep

ROWS_AT_ONCE = 1024
MASKED_BELOW = -1e4  # added to a score, it gives no weight: exp(-1e4) is 0 in every dtype
UNBOUNDED = 2**40  # more than any sequence length

T = TypeVar("T")


class MaskAndBias(NamedTuple):
    """A mask, and the bias of the scores that it allows."""

    mask: Mask
    bias: ScoreStep | None


_cache: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The results for tensors that are still alive; layers that are given the same tensor share them."""


def read_mask(given: Tensor | None, query: Tensor, key: Tensor) -> MaskAndBias:
    """Convert an `attn_mask` of PyTorch: None, booleans (True attends), or an additive mask."""
    if given is None:
        return MaskAndBias(Full(), None)
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    if given.requires_grad and torch.is_grad_enabled():  # a learned bias needs its gradient
        masked = given.detach() <= torch.finfo(given.dtype).min
        return MaskAndBias(read_allowed(~masked, queries, keys), Bias(given.masked_fill(masked, 0.0)))
    plain = given.detach()  # another object, so that the cached result does not keep its key alive
    return _compute_once(given, (heads, queries, keys), lambda: _read(plain, heads, queries, keys))


def read_bias(bias: Tensor, heads: int, queries: int, keys: int) -> ScoreStep | None:
    """Convert an additive bias that masks nothing; one that depends on the distance only is stored per distance."""
    if bias.requires_grad and torch.is_grad_enabled():
        return Bias(bias)
    plain = bias.detach()
    return _compute_once(bias, (heads, queries, keys), lambda: _read_bias(plain, heads, queries, keys))


def _compute_once(tensor: Tensor, sizes: object, make: Callable[[], T]) -> T:
    if tensor.is_inference():  # has no version counter
        return make()
    version = (tensor._version, sizes)
    found = _cache.get(tensor)
    if found is None or found[0] != version:
        found = _cache[tensor] = version, make()  # another thread may have stored a result for other sizes
    return found[1]


def _read(given: Tensor, heads: int, queries: int, keys: int) -> MaskAndBias:
    if given.dtype == torch.bool:
        return MaskAndBias(read_allowed(given, queries, keys), None)
    masked = given <= torch.finfo(given.dtype).min  # also the lowest finite number, which models use for -inf
    rest = given.masked_fill(masked, 0.0)
    if not bool(((rest > MASKED_BELOW) & (rest != 0)).any()):  # only zeros and numbers that give no weight
        return MaskAndBias(read_allowed(~masked & (rest > MASKED_BELOW), queries, keys), None)
    return MaskAndBias(read_allowed(~masked, queries, keys), _read_bias(rest, heads, queries, keys))


def _read_bias(bias: Tensor, heads: int, queries: int, keys: int) -> ScoreStep | None:
    """A bias (1, heads, queries, keys) that is constant on each diagonal is stored as one number per diagonal."""
    if not bool(bias.any()):
        return None
    if tuple(bias.shape) not in ((1, 1, queries, keys), (1, heads, queries, keys)):
        return Bias(bias)
    if not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1]):
        return Bias(bias)
    down, across = bias[0, :, :, 0], bias[0, :, 0]
    table = torch.cat([down.flip(1)[:, :-1], across], 1)
    return Bias.by_distance(table.expand(heads, -1).contiguous(), first=1 - keys)


def read_allowed(attend: Tensor, queries: int, keys: int) -> Mask:
    """Convert booleans, True where a query may attend to a key."""
    if bool(attend.all()):
        return Full()
    table = attend.expand(*(1,) * (4 - attend.dim()), *attend.shape) if attend.dim() < 4 else attend
    if table.shape[1] == 1 and _is_key_mask(table):
        keep = table[:, 0, 0].expand(-1, keys)
        return from_bool(attend=keep[:, None, None]) if keep.shape[0] == 1 else Padding(keep=keep)
    if table.shape[:2] == (1, 1) and tuple(table.shape[2:]) == (queries, keys):
        for offset in {0, keys - queries}:
            if _is_causal(table[0, 0], offset):
                return Causal() if offset == keys - queries else Causal(offset)
    return from_bool(attend=attend)


def _is_key_mask(table: Tensor) -> bool:
    """Whether all queries may attend to the same keys."""
    return table.shape[2] == 1 or bool((table == table[:, :, :1]).all())


def _is_causal(table: Tensor, offset: int) -> bool:
    queries, keys = table.shape
    columns = torch.arange(keys, device=table.device)
    for start in range(0, queries, ROWS_AT_ONCE):
        rows = torch.arange(start, min(start + ROWS_AT_ONCE, queries), device=table.device)
        if not torch.equal(table[start : start + ROWS_AT_ONCE], columns <= rows[:, None] + offset):
            return False
    return True


def intersect(first: Mask, second: Mask) -> Mask:
    """The keys that both masks allow, simplified: `Full` is dropped, and a window with a causal mask is a `Window`."""
    if isinstance(first, Full) or isinstance(second, Full):
        return second if isinstance(first, Full) else first
    if isinstance(first, Window) and isinstance(second, Causal) and first.after == UNBOUNDED:
        return Window(first.before + 1, offset=first.offset)
    return first & second
