"""The base class of masks, and how masks combine with `&`, `|` and `~`.

A mask is a predicate over query and key positions (`allows`), so no caller has to build n x n booleans. Where it has
that structure, it is also a list of integer regions (`to_regions`). It does not depend on scores, dtypes or backends.
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
from attnscope.attention.transfers import to_device
from attnscope.errors import ShapeError

MAX_PAIRS = 100_000  # pairs of regions that one combination may compare before it stops being cheap


class Sizes(NamedTuple):
    """The shape (batch, heads, queries, keys) of an attention matrix, which is not built."""

    batch: int
    heads: int
    queries: int
    keys: int


class RegionMask(NamedTuple):
    """A mask as regions, one set for all batch rows or one per batch row, and a key mask.

    `key_mask` (batch or 1, keys) is False for keys that no query attends to, whatever the regions say.
    """

    regions: tuple[tuple[Region, ...], ...]
    key_mask: Tensor | None = None

    def to(self, device: torch.device) -> RegionMask:
        """Return the same mask with its key mask on a device."""
        return self if self.key_mask is None else self._replace(key_mask=to_device(self.key_mask, device))


class Mask(ABC):
    """Which query attends to which key. Masks combine with `&`, `|` and `~`.

    >>> from attnscope import Causal, Prefix
    >>> Causal() | Prefix(3)
    (Causal() | Prefix(length=3))
    """

    @property
    def is_static(self) -> bool:
        """Whether it holds no tensors and compares by value, so plans made for it can be cached."""
        return False

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        """Return which queries attend to which keys.

        Args:
            query: Query positions; they broadcast with `key` to some shape S.
            key: Key positions.
            sizes: The shape of the attention matrix.

        Returns:
            Booleans of shape S, or (batch or 1, heads or 1, *S) if they depend on the batch row or the head.
        """

    @abstractmethod
    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        """Return the mask as regions; None if it does not have that structure or needs too many regions.

        Args:
            sizes: The shape of the attention matrix.

        Returns:
            The regions, or None.
        """

    def check(self, sizes: Sizes) -> None:
        """Raise ShapeError if the mask does not fit an attention matrix of this shape.

        Args:
            sizes: The shape of the attention matrix.
        """
        return  # most masks have none

    def narrow(self, batch: slice, heads: slice | list[int]) -> Mask:
        """Return the mask of these batch rows and heads.

        Args:
            batch: A range of batch rows.
            heads: A range of heads, or their indices.

        Returns:
            The mask of the smaller attention matrix.
        """
        return self

    def to_dense(self, sizes: Sizes, device: torch.device | None = None) -> Tensor:
        """Return the mask as booleans (batch or 1, heads or 1, queries, keys), in O(n^2) memory.

        Args:
            sizes: The shape of the attention matrix.
            device: Where the result is; the CPU if None.

        Returns:
            True where a query attends to a key.
        """
        self.check(sizes)
        rows = torch.arange(sizes.queries, device=device)[:, None]
        allowed = self.allows(rows, torch.arange(sizes.keys, device=device)[None, :], sizes)
        return allowed[None, None] if allowed.dim() == 2 else allowed

    def __and__(self, other: Mask) -> Mask:
        return And(self, _require_mask(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _require_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)


@dataclass(frozen=True, repr=False)
class _Pair(Mask):
    """A combination of two masks."""

    first: Mask
    second: Mask

    @property
    def is_static(self) -> bool:
        return self.first.is_static and self.second.is_static

    def check(self, sizes: Sizes) -> None:
        self.first.check(sizes)
        self.second.check(sizes)

    def narrow(self, batch: slice, heads: slice | list[int]) -> Mask:
        return type(self)(self.first.narrow(batch, heads), self.second.narrow(batch, heads))


class And(_Pair):
    """Both masks allow it."""

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return self.first.allows(query, key, sizes) & self.second.allows(query, key, sizes)

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        first, second = self.first.to_regions(sizes), self.second.to_regions(sizes)
        both = None if first is None or second is None else _combine_rows(regions.intersection, first, second)
        if first is None or second is None or both is None:
            return None
        if first.key_mask is None or second.key_mask is None:
            return RegionMask(both, second.key_mask if first.key_mask is None else first.key_mask)
        return RegionMask(both, first.key_mask & second.key_mask)

    def __repr__(self) -> str:
        return f"({self.first} & {self.second})"


class Or(_Pair):
    """At least one of the masks allows it."""

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return self.first.allows(query, key, sizes) | self.second.allows(query, key, sizes)

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        first, second = self.first.to_regions(sizes), self.second.to_regions(sizes)
        if first is None or second is None or first.key_mask is not None or second.key_mask is not None:
            return None
        either = _combine_rows(regions.union, first, second)
        return None if either is None else RegionMask(either)

    def __repr__(self) -> str:
        return f"({self.first} | {self.second})"


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """The mask does not allow it."""

    inner: Mask

    @property
    def is_static(self) -> bool:
        return self.inner.is_static

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return ~self.inner.allows(query, key, sizes)

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        inner = self.inner.to_regions(sizes)
        if inner is None or inner.key_mask is not None or max(map(len, inner.regions), default=0) ** 2 > MAX_PAIRS:
            return None
        return RegionMask(tuple(regions.complement(row, sizes.queries, sizes.keys) for row in inner.regions))

    def check(self, sizes: Sizes) -> None:
        self.inner.check(sizes)

    def narrow(self, batch: slice, heads: slice | list[int]) -> Mask:
        return Not(self.inner.narrow(batch, heads))

    def __repr__(self) -> str:
        return f"~{self.inner}"


def check_broadcast(name: str, shape: torch.Size, sizes: Sizes) -> None:
    """Raise ShapeError unless a tensor of this shape broadcasts to (batch, heads, queries, keys)."""
    if len(shape) > 4 or any(got not in (1, want) for got, want in zip(shape[::-1], sizes[::-1], strict=False)):
        raise ShapeError(
            f"{name}: expected a shape that broadcasts to {tuple(sizes)}, (batch, heads, queries, keys), "
            f"got {tuple(shape)}"
        )


def _require_mask(other: object) -> Mask:
    if not isinstance(other, Mask):
        raise TypeError(f"expected another mask, got {type(other).__name__}; wrap a boolean tensor with from_bool(...)")
    return other


def _combine_rows(combine: Callable, first: RegionMask, second: RegionMask) -> tuple[tuple[Region, ...], ...] | None:
    """Combine two sets of regions for each batch row; None if that would be too much work."""
    rows = max(len(first.regions), len(second.regions))
    ones = first.regions * (rows if len(first.regions) == 1 else 1)
    twos = second.regions * (rows if len(second.regions) == 1 else 1)
    if any(len(one) * len(two) > MAX_PAIRS for one, two in zip(ones, twos, strict=True)):
        return None
    return tuple(combine(one, two) for one, two in zip(ones, twos, strict=True))
