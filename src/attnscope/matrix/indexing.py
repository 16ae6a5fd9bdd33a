"""Resolves the index of `A[...]` into positions along each axis.

Queries and keys take ints, slices with any step, lists, and tensors of integers or booleans; batch and head take ints
and slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.matrix.positions import Positions

Index = int | slice | Sequence[int] | Tensor
Key = Index | EllipsisType | tuple[Index | EllipsisType, ...]


class AxisIndex(NamedTuple):
    """Positions along one axis; `single` if the index was an int, which drops the axis."""

    positions: Positions
    single: bool


def resolve_index(index: Index, length: int, device: torch.device, axis: str) -> AxisIndex:
    """The positions that an index selects along an axis of this length; a tensor on a GPU is read for that."""
    if isinstance(index, slice):
        some = range(length)[index]
        return AxisIndex(Positions(some if some.step == 1 else list(some), device), single=False)
    if isinstance(index, Integral) or (isinstance(index, Tensor) and index.dim() == 0):
        return AxisIndex(Positions(_check_range(torch.tensor([int(index)]), length, axis), device), single=True)
    found = torch.as_tensor(index).cpu()
    found = found if found.numel() else found.long()
    if found.dtype == torch.bool:
        if tuple(found.shape) != (length,):
            raise ShapeError(f"A[...]: expected {length} booleans for {axis}, got {tuple(found.shape)}")
        return AxisIndex(Positions(found.nonzero().flatten(), device), single=False)
    if found.dim() != 1 or found.is_floating_point():
        raise ShapeError(f"A[...]: expected an int, a slice or a list of ints for {axis}, got {tuple(found.shape)}")
    return AxisIndex(Positions(_check_range(found, length, axis), device), single=False)


def split_index(key: Key, shape: Sequence[int]) -> list[Index]:
    """One index per axis of a matrix of this shape.

    With leading axes, `A[0]` is an error: as for a tensor it would be a whole batch row, dense. `A[:]` is everything.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    places = [at for at, one in enumerate(parts) if one is Ellipsis]
    missing = len(shape) - (len(parts) - len(places))
    clear = places or all(isinstance(one, slice) and one == slice(None) for one in parts)
    if missing < 0 or len(places) > 1 or (missing > 1 and not clear):
        names = ("batch", "head", "query", "key")[4 - len(shape) :]
        example = f"A[{'0, ' * (len(shape) - 2)}rows, columns], A[..., rows, columns]"
        raise ShapeError(
            f"A[...]: expected an index for each of the axes ({', '.join(names)}), got {len(parts)}"
            + ("" if len(shape) == 2 else f"; write {example}, or .batch(b).head(h) first")
        )
    at = places[0] if places else len(parts)
    parts[at : at + len(places)] = [slice(None)] * missing
    leading = [one for one in parts[:-2] if not isinstance(one, int | slice)]
    if leading:
        raise ShapeError(f"A[...]: expected an int or a slice for batch and head, got {type(leading[0]).__name__}")
    return parts  # pyright: ignore[reportReturnType] - no Ellipsis is left


def _check_range(found: Tensor, length: int, axis: str) -> Tensor:
    if found.numel() and (int(found.min()) < -length or int(found.max()) >= length):
        raise IndexError(
            f"A[...]: expected {axis} in 0 ... {length - 1}, got {int(found.min())} ... {int(found.max())}"
        )
    return torch.where(found < 0, found + length, found).to(torch.long)
