"""What a mask is, and how masks combine with `&`, `|` and `~`.

A mask answers for any pair of index tensors (`allows`), so that no caller has to build n x n, and lowers itself to
integer regions (`lower`) where it has that structure. It knows nothing about scores, dtypes or engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import regions
from attnscope.attention.regions import Region
from attnscope.errors import ShapeError

MAX_PAIRS = 100_000  # pairs of regions that one combination may look at before it stops being cheap


class Sizes(NamedTuple):
    """The shape of the (never built) matrix that a mask is asked about."""

    batch: int
    heads: int
    queries: int
    keys: int


class Lowered(NamedTuple):
    """A mask as regions (one set for all batch rows, or one for each) and the keys to keep, (batch or 1, keys)."""

    regions: tuple[tuple[Region, ...], ...]
    keep: Tensor | None = None


class Mask(ABC):
    """Says which (query, key) pairs take part in attention."""

    @property
    def static(self) -> bool:
        """Whether it holds no tensors and compares by value, so that plans made for it can be kept."""
        return False

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        """True where query index sees key index; the index tensors broadcast to some shape S.

        Returns S, or (batch or 1, heads or 1, *S) where the answer depends on the batch row or the head.
        """

    @abstractmethod
    def lower(self, sizes: Sizes) -> Lowered | None:
        """The mask as regions, or None when it has no such structure (or too many pieces)."""

    def check(self, sizes: Sizes) -> None:
        """Raise ShapeError if the mask's own tensors do not fit this matrix."""
        return  # most masks have none

    def narrow(self, batch: slice, heads: slice | list[int]) -> Mask:
        """The mask of these batch rows and heads alone."""
        return self

    def dense(self, sizes: Sizes, device: torch.device | None = None) -> Tensor:
        """The whole matrix of booleans, (batch or 1, heads or 1, queries, keys): for small sizes and for tests."""
        self.check(sizes)
        rows = torch.arange(sizes.queries, device=device)[:, None]
        allowed = self.allows(rows, torch.arange(sizes.keys, device=device)[None, :], sizes)
        return allowed[None, None] if allowed.dim() == 2 else allowed

    def __and__(self, other: Mask) -> Mask:
        return And(self, _mask(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _mask(other))

    def __invert__(self) -> Mask:
        return Not(self)


@dataclass(frozen=True, repr=False)
class _Pair(Mask):
    """Two masks in combination."""

    first: Mask
    second: Mask

    @property
    def static(self) -> bool:
        return self.first.static and self.second.static

    def check(self, sizes: Sizes) -> None:
        self.first.check(sizes)
        self.second.check(sizes)

    def narrow(self, batch: slice, heads: slice | list[int]) -> Mask:
        return type(self)(self.first.narrow(batch, heads), self.second.narrow(batch, heads))


class And(_Pair):
    """Cells that both masks allow."""

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return self.first.allows(query, key, sizes) & self.second.allows(query, key, sizes)

    def lower(self, sizes: Sizes) -> Lowered | None:
        first, second = self.first.lower(sizes), self.second.lower(sizes)
        both = None if first is None or second is None else _for_each_row(regions.intersection, first, second)
        if first is None or second is None or both is None:
            return None
        if first.keep is None or second.keep is None:
            return Lowered(both, second.keep if first.keep is None else first.keep)
        return Lowered(both, first.keep & second.keep)

    def __repr__(self) -> str:
        return f"({self.first} & {self.second})"


class Or(_Pair):
    """Cells that at least one of two masks allows."""

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return self.first.allows(query, key, sizes) | self.second.allows(query, key, sizes)

    def lower(self, sizes: Sizes) -> Lowered | None:
        first, second = self.first.lower(sizes), self.second.lower(sizes)
        if first is None or second is None or first.keep is not None or second.keep is not None:
            return None
        either = _for_each_row(regions.union, first, second)
        return None if either is None else Lowered(either)

    def __repr__(self) -> str:
        return f"({self.first} | {self.second})"


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """Cells that a mask does not allow."""

    inner: Mask

    @property
    def static(self) -> bool:
        return self.inner.static

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return ~self.inner.allows(query, key, sizes)

    def lower(self, sizes: Sizes) -> Lowered | None:
        inner = self.inner.lower(sizes)
        if inner is None or inner.keep is not None or max(map(len, inner.regions), default=0) ** 2 > MAX_PAIRS:
            return None
        return Lowered(tuple(regions.complement(row, sizes.queries, sizes.keys) for row in inner.regions))

    def check(self, sizes: Sizes) -> None:
        self.inner.check(sizes)

    def narrow(self, batch: slice, heads: slice | list[int]) -> Mask:
        return Not(self.inner.narrow(batch, heads))

    def __repr__(self) -> str:
        return f"~{self.inner}"


def check_broadcast(name: str, shape: torch.Size, sizes: Sizes) -> None:
    """Raise ShapeError unless a tensor of this shape broadcasts to (batch, heads, queries, keys)."""
    if len(shape) > 4 or any(got not in (1, want) for got, want in zip(shape[::-1], sizes[::-1], strict=False)):
        wanted = f"{tuple(sizes)} (batch, heads, queries, keys)"
        raise ShapeError(f"{name}: {tuple(shape)} does not broadcast to {wanted}")


def _mask(other: object) -> Mask:
    if not isinstance(other, Mask):
        raise TypeError(
            f"masks combine with masks, got {type(other).__name__}; wrap a boolean tensor with from_bool(...)"
        )
    return other


def _for_each_row(combine: Callable, first: Lowered, second: Lowered) -> tuple[tuple[Region, ...], ...] | None:
    """Combine two sets of regions for each batch row; None when that would be too much work."""
    rows = max(len(first.regions), len(second.regions))
    ones = first.regions * (rows if len(first.regions) == 1 else 1)
    twos = second.regions * (rows if len(second.regions) == 1 else 1)
    if any(len(one) * len(two) > MAX_PAIRS for one, two in zip(ones, twos, strict=True)):
        return None
    return tuple(combine(one, two) for one, two in zip(ones, twos, strict=True))
