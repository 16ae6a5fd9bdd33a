"""What stands between the brackets of `A[rows, columns]`, as positions.

Ints, slices with any step, lists, and tensors of integers or booleans. No tensors of weights here.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import ShapeError

Index = int | slice | Sequence[int] | Tensor


class Chosen(NamedTuple):
    """Positions along one axis; `single` when an int asked for one and its axis goes away."""

    positions: Tensor
    single: bool


def choose(index: Index, length: int, device: torch.device, axis: str) -> Chosen:
    """The positions that an index means along an axis of this length."""
    if isinstance(index, slice):
        return Chosen(torch.arange(length, device=device)[_forwards(index, length)], single=False)
    if isinstance(index, Integral) or (isinstance(index, Tensor) and index.dim() == 0):
        return Chosen(_checked(torch.tensor([int(index)], device=device), length, axis), single=True)
    found = torch.as_tensor(index, device=device)
    found = found if found.numel() else found.long()
    if found.dtype == torch.bool:
        if tuple(found.shape) != (length,):
            raise ShapeError(f"A[...]: booleans for {axis} must have {length} entries, got {tuple(found.shape)}")
        return Chosen(found.nonzero().flatten(), single=False)
    if found.dim() != 1 or found.is_floating_point():
        raise ShapeError(f"A[...]: {axis} are given by an int, a slice or a list of ints, got {tuple(found.shape)}")
    return Chosen(_checked(found, length, axis), single=False)


def split(key: Index | tuple[Index, ...]) -> tuple[Index, Index]:
    """The indices of rows and columns; a single one is for rows."""
    if not isinstance(key, tuple):
        return key, slice(None)
    if len(key) != 2:
        raise ShapeError(
            f"A[...]: takes rows and columns, got {len(key)} indices; leading axes are taken by .batch(b) and .head(h)"
        )
    return key


def _forwards(index: slice, length: int) -> Tensor | slice:
    start, stop, step = index.indices(length)
    return index if step > 0 else torch.tensor(range(start, stop, step), dtype=torch.long)


def _checked(found: Tensor, length: int, axis: str) -> Tensor:
    if found.numel() and (int(found.min()) < -length or int(found.max()) >= length):
        raise IndexError(f"A[...]: {axis} lie in 0 ... {length - 1}, got {int(found.min())} ... {int(found.max())}")
    return torch.where(found < 0, found + length, found).to(torch.long)
