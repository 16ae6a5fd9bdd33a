"""The tensors inside masks and score modifiers: iterate over them, count their bytes, or replace each one.

In: a mask, a score modifier, or a tuple, list or dataclass of them. Does not know: what the tensors mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import is_dataclass
from typing import Any, TypeVar

from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.scores import ScoreMod

T = TypeVar("T")


def iter_tensors(thing: object) -> Iterator[Tensor]:
    """Yield every tensor of a mask or a score modifier."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, tuple | list):
        for part in thing:
            yield from iter_tensors(part)
    elif _has_fields(thing):
        for part in vars(thing).values():
            yield from iter_tensors(part)


def map_tensors(thing: T, function: Callable[[Tensor], Tensor]) -> T:
    """Return a copy of a mask or a score modifier, with `function` applied to every tensor."""
    return _map(thing, function)


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all tensors together; duplicates count once, and expanded axes count as 1."""
    distinct = {(one.data_ptr() or id(one), one.dtype, one.shape, one.stride()): one for one in tensors}
    return sum(
        one.element_size() * math.prod(size for size, stride in zip(one.shape, one.stride(), strict=True) if stride)
        for one in distinct.values()
        if one.numel()
    )


def _map(thing: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(thing, Tensor):
        return function(thing)
    if isinstance(thing, tuple | list):
        parts = [_map(part, function) for part in thing]
        return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
    if not _has_fields(thing):
        return thing
    duplicate = copy(thing)
    for name, part in vars(thing).items():
        object.__setattr__(duplicate, name, _map(part, function))
    return duplicate


def _has_fields(thing: object) -> bool:
    return isinstance(thing, Mask | ScoreMod) or (is_dataclass(thing) and not isinstance(thing, type))
