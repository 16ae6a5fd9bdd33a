"""Mask tensors of other people's code as masks and scores of ours.

In: a tensor that broadcasts to (batch, heads, queries, keys), of booleans or of numbers that are added to the scores.
Out: a `Mask`, and a `Bias` for what is more than a mask. A causal triangle or a mask of keys alone is known as such, so
that nothing n x n is kept for it. Does not know: who passed it. Memory: O(1) or that of the tensor, and a block of it.
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
FORBIDS = -1e4  # added to a score, it leaves no weight: exp(-1e4) is 0 in every dtype
FAR = 2**40  # further than any text is long

T = TypeVar("T")


class Read(NamedTuple):
    """A mask, and the numbers to add where it allows."""

    mask: Mask
    bias: ScoreStep | None


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""What was read from tensors that are still alive, so that all layers that are given one share it."""


def read_tensor(given: Tensor | None, query: Tensor, key: Tensor) -> Read:
    """A mask of PyTorch: none, booleans that allow, or numbers to add."""
    if given is None:
        return Read(Full(), None)
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    if given.requires_grad and torch.is_grad_enabled():  # a learned bias, which is to be learned further
        forbidden = given.detach() <= torch.finfo(given.dtype).min
        return Read(read_allowed(~forbidden, queries, keys), Bias(given.masked_fill(forbidden, 0.0)))
    plain = given.detach()  # another object, so that what is remembered does not keep what it was read from
    return _remembered(given, (heads, queries, keys), lambda: _read(plain, heads, queries, keys))


def read_bias(numbers: Tensor, heads: int, queries: int, keys: int) -> ScoreStep | None:
    """Numbers that are added to the scores and forbid nothing; those that depend on the distance alone are kept so."""
    if numbers.requires_grad and torch.is_grad_enabled():
        return Bias(numbers)
    plain = numbers.detach()
    return _remembered(numbers, (heads, queries, keys), lambda: _read_bias(plain, heads, queries, keys))


def _remembered(tensor: Tensor, about: object, make: Callable[[], T]) -> T:
    if tensor.is_inference():  # nobody counts how often it was written to
        return make()
    stamp = (tensor._version, about)
    found = _known.get(tensor)
    if found is None or found[0] != stamp:
        found = _known[tensor] = stamp, make()  # what another thread has stored meanwhile is of its own sizes
    return found[1]


def _read(given: Tensor, heads: int, queries: int, keys: int) -> Read:
    if given.dtype == torch.bool:
        return Read(read_allowed(given, queries, keys), None)
    forbidden = given <= torch.finfo(given.dtype).min  # minus infinity, and what stands for it
    rest = given.masked_fill(forbidden, 0.0)
    if not bool(((rest > FORBIDS) & (rest != 0)).any()):  # nothing but zeros and numbers that leave no weight
        return Read(read_allowed(~forbidden & (rest > FORBIDS), queries, keys), None)
    return Read(read_allowed(~forbidden, queries, keys), _read_bias(rest, heads, queries, keys))


def _read_bias(numbers: Tensor, heads: int, queries: int, keys: int) -> ScoreStep | None:
    """(1, heads, queries, keys) with equal numbers on each diagonal becomes one number a diagonal."""
    if not bool(numbers.any()):
        return None
    if tuple(numbers.shape) not in ((1, 1, queries, keys), (1, heads, queries, keys)):
        return Bias(numbers)
    if not torch.equal(numbers[..., 1:, 1:], numbers[..., :-1, :-1]):
        return Bias(numbers)
    down, across = numbers[0, :, :, 0], numbers[0, :, 0]
    table = torch.cat([down.flip(1)[:, :-1], across], 1)
    return Bias.by_distance(table.expand(heads, -1).contiguous(), first=1 - keys)


def read_allowed(attend: Tensor, queries: int, keys: int) -> Mask:
    """A tensor of booleans, True where a query may see a key."""
    if bool(attend.all()):
        return Full()
    table = attend.expand(*(1,) * (4 - attend.dim()), *attend.shape) if attend.dim() < 4 else attend
    if table.shape[1] == 1 and _same_in_each_row(table):
        keep = table[:, 0, 0].expand(-1, keys)
        return from_bool(attend=keep[:, None, None]) if keep.shape[0] == 1 else Padding(keep=keep)
    if table.shape[:2] == (1, 1) and tuple(table.shape[2:]) == (queries, keys):
        for offset in {0, keys - queries}:
            if _is_causal(table[0, 0], offset):
                return Causal() if offset == keys - queries else Causal(offset)
    return from_bool(attend=attend)


def _same_in_each_row(table: Tensor) -> bool:
    """Whether all queries see the same keys, so that the mask is one of keys."""
    return table.shape[2] == 1 or bool((table == table[:, :, :1]).all())


def _is_causal(table: Tensor, offset: int) -> bool:
    queries, keys = table.shape
    columns = torch.arange(keys, device=table.device)
    for start in range(0, queries, ROWS_AT_ONCE):
        rows = torch.arange(start, min(start + ROWS_AT_ONCE, queries), device=table.device)
        if not torch.equal(table[start : start + ROWS_AT_ONCE], columns <= rows[:, None] + offset):
            return False
    return True


def both(first: Mask, second: Mask) -> Mask:
    """Two masks together, without one that allows everything, and a window that ends at the query as what it is."""
    if isinstance(first, Full) or isinstance(second, Full):
        return second if isinstance(first, Full) else first
    if isinstance(first, Window) and isinstance(second, Causal) and first.after == FAR:
        return Window(first.before + 1, offset=first.offset)
    return first & second
