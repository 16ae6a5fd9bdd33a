"""The tensors that masks and scores hold: list them, count their bytes, or replace each one.

In: a mask, a score, or a tuple, list or dataclass of them. Does not know: what the tensors mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import is_dataclass
from typing import Any, TypeVar

from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.scores import Score

T = TypeVar("T")


def tensors_in(thing: object) -> Iterator[Tensor]:
    """Yield every tensor that a mask or a score holds."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, tuple | list):
        for part in thing:
            yield from tensors_in(part)
    elif _has_parts(thing):
        for part in vars(thing).values():
            yield from tensors_in(part)


def map_tensors(thing: T, function: Callable[[Tensor], Tensor]) -> T:
    """Copy a mask or a score, with `function` applied to every tensor in it."""
    return _mapped(thing, function)


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors take together; a tensor that occurs twice counts once, and expanded axes count as 1."""
    distinct = {(one.data_ptr() or id(one), one.dtype, one.shape, one.stride()): one for one in tensors}
    return sum(
        one.element_size() * math.prod(size for size, stride in zip(one.shape, one.stride(), strict=True) if stride)
        for one in distinct.values()
        if one.numel()
    )


def _mapped(thing: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(thing, Tensor):
        return function(thing)
    if isinstance(thing, tuple | list):
        parts = [_mapped(part, function) for part in thing]
        return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
    if not _has_parts(thing):
        return thing
    duplicate = copy(thing)
    for name, part in vars(thing).items():
        object.__setattr__(duplicate, name, _mapped(part, function))
    return duplicate


def _has_parts(thing: object) -> bool:
    return isinstance(thing, Mask | Score) or (is_dataclass(thing) and not isinstance(thing, type))
