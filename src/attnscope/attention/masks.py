"""The masks: which query may see which key.

`Full`, `Causal`, `Window`, `Prefix`, `Documents`, `Padding` and `from_bool`. Where there are fewer queries than keys,
the queries are the last ones: row i stands at position i + keys - queries unless an offset is given. Memory: what the
caller gave, never n x n.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from operator import index
from typing import TypeVar

import torch
from torch import Tensor

from attnscope.attention import regions
from attnscope.attention.algebra import Lowered, Mask, Sizes, check_broadcast
from attnscope.attention.regions import Region
from attnscope.errors import ShapeError

MAX_REGIONS = 16_384  # a longer list of regions is no longer short: asking the predicate block by block is cheaper

Integers = int | Sequence[int] | Tensor
Numbers = TypeVar("Numbers", bound=int | tuple[int, ...] | None)


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""

    @property
    def static(self) -> bool:
        return True

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=query.device)

    def lower(self, sizes: Sizes) -> Lowered:
        return Lowered((regions.band(sizes.queries, sizes.keys, None, None),))


class _Band(Mask):
    """Keys between two diagonals around the query's own position; the shared part of Causal and Window."""

    offset: int | tuple[int, ...] | None

    @property
    def static(self) -> bool:
        return True

    @abstractmethod
    def _reach(self) -> tuple[int | None, int]:
        """How many keys before the query (None: all) and after it are seen."""

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        distance = key - (query + _stacked(self._offsets(sizes), query.dim(), key.device))
        before, after = self._reach()
        return distance <= after if before is None else (distance <= after) & (distance >= -before)

    def lower(self, sizes: Sizes) -> Lowered:
        before, after = self._reach()

        def around(offset: int) -> tuple[Region, ...]:
            lowest = None if before is None else offset - before
            return regions.band(sizes.queries, sizes.keys, lowest, offset + after)

        offsets = self._offsets(sizes)
        return Lowered(tuple(around(offset) for offset in ((offsets,) if isinstance(offsets, int) else offsets)))

    def check(self, sizes: Sizes) -> None:
        _check_batch(self, self.offset, sizes)

    def _offsets(self, sizes: Sizes) -> int | tuple[int, ...]:
        return sizes.keys - sizes.queries if self.offset is None else self.offset


@dataclass(frozen=True, init=False)
class Causal(_Band):
    """Query i sees keys j <= i + offset; by default the last query sees all keys (aligned bottom-right).

    An int, or one per batch row, places the first query in a static cache.
    """

    offset: int | tuple[int, ...] | None = None

    def __init__(self, offset: Integers | None = None) -> None:
        object.__setattr__(self, "offset", _integers(offset))

    def _reach(self) -> tuple[None, int]:
        return None, 0

    def narrow(self, batch: slice, heads: slice | list[int]) -> Causal:
        return Causal(_narrowed(self.offset, batch))

    def __repr__(self) -> str:
        return "Causal()" if self.offset is None else f"Causal(offset={self.offset})"


@dataclass(frozen=True, init=False)
class Window(_Band):
    """`Window(w)`: the w last keys up to and including the token itself, j in (i - w, i].

    `Window(before=b, after=a)` sees j in [i - b, i + a], for encoders.
    """

    before: int
    after: int
    offset: int | tuple[int, ...] | None = None

    def __init__(
        self,
        width: int | None = None,
        *,
        before: int | None = None,
        after: int | None = None,
        offset: Integers | None = None,
    ) -> None:
        if width is None and before is None and after is None:
            raise ValueError("Window(): give a width, or before= and after=")
        if width is not None and (before is not None or after is not None):
            raise ValueError(
                f"Window(width={width}, before={before}, after={after}): give the width or before/after, not both"
            )
        if width is not None and width < 1:
            raise ValueError(f"Window({width}): the width counts the token itself, so it is at least 1")
        before, after = index(before or 0), index(after or 0)
        if before < 0 or after < 0:
            raise ValueError(f"Window(before={before}, after={after}): both count keys and cannot be negative")
        object.__setattr__(self, "before", before if width is None else index(width) - 1)
        object.__setattr__(self, "after", after)
        object.__setattr__(self, "offset", _integers(offset))

    def _reach(self) -> tuple[int, int]:
        return self.before, self.after

    def narrow(self, batch: slice, heads: slice | list[int]) -> Window:
        return Window(before=self.before, after=self.after, offset=_narrowed(self.offset, batch))

    def __repr__(self) -> str:
        shape = f"before={self.before}, after={self.after}" if self.after else f"{self.before + 1}"
        return f"Window({shape})" if self.offset is None else f"Window({shape}, offset={self.offset})"


@dataclass(frozen=True, init=False)
class Prefix(Mask):
    """Keys j < length, whatever the query; one length for all or one a batch row.

    `Causal() | Prefix(p)` is the mask of a prefix language model.
    """

    length: int | tuple[int, ...]

    @property
    def static(self) -> bool:
        return True

    def __init__(self, length: Integers) -> None:
        object.__setattr__(self, "length", _integers(length))

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        shape = torch.broadcast_shapes(query.shape, key.shape)
        return key.expand(shape) < _stacked(self.length, len(shape), key.device)

    def lower(self, sizes: Sizes) -> Lowered:
        lengths = (self.length,) if isinstance(self.length, int) else self.length
        return Lowered(tuple(_columns(sizes, [(0, min(length, sizes.keys))]) for length in lengths))

    def narrow(self, batch: slice, heads: slice | list[int]) -> Prefix:
        return Prefix(_narrowed(self.length, batch))

    def check(self, sizes: Sizes) -> None:
        _check_batch(self, self.length, sizes)


@dataclass(frozen=True, init=False, eq=False)
class Documents(Mask):
    """Query and key belong to the same document: equal ids. `ids` is (keys,) or (batch, keys).

    The queries are the last ones of the sequence unless they bring their own `query_ids` (cross-attention).
    """

    ids: Tensor
    query_ids: Tensor | None

    def __init__(self, ids: Tensor | Sequence[int], query_ids: Tensor | Sequence[int] | None = None) -> None:
        # Copies, since what is read off them once is kept.
        object.__setattr__(self, "ids", torch.as_tensor(ids).clone())
        object.__setattr__(self, "query_ids", None if query_ids is None else torch.as_tensor(query_ids).clone())

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        queries, keys = self._both(sizes)
        first, second = queries.to(query.device)[..., query], keys.to(key.device)[..., key]
        if keys.dim() == 1:
            return first == second
        return first[:, None] == second[:, None]

    def lower(self, sizes: Sizes) -> Lowered | None:
        per_row = []
        for rows, columns in zip(*self._runs(sizes), strict=True):
            by_id: dict[int, list[tuple[int, int]]] = {}
            for start, stop, identity in columns:
                by_id.setdefault(identity, []).append((start, stop))
            if sum(len(by_id.get(identity, ())) for _, _, identity in rows) > MAX_REGIONS:
                return None
            found = [(a, b, *run) for a, b, identity in rows for run in by_id.get(identity, ())]
            per_row.append(tuple(regions.rectangle(*corners) for corners in found))
        return Lowered(tuple(per_row))

    def check(self, sizes: Sizes) -> None:
        for name, ids, length in (("ids", self.ids, sizes.keys), ("query_ids", self.query_ids, sizes.queries)):
            if ids is not None and tuple(ids.shape) not in ((length,), (sizes.batch, length)):
                wanted = f"({length},) or ({sizes.batch}, {length})"
                raise ShapeError(f"Documents: {name} must be {wanted} for this attention, got {tuple(ids.shape)}")
        if self.query_ids is None and sizes.queries > sizes.keys:
            raise ShapeError(
                f"Documents: {sizes.queries} queries cannot be the last of {sizes.keys} keys; give query_ids"
            )
        if self.query_ids is not None and self.query_ids.dim() != self.ids.dim():
            raise ShapeError(
                f"Documents: ids are {self.ids.dim()}-D, query_ids {self.query_ids.dim()}-D; give both alike"
            )

    def narrow(self, batch: slice, heads: slice | list[int]) -> Documents:
        if self.ids.dim() == 1:
            return self
        return Documents(self.ids[batch], None if self.query_ids is None else self.query_ids[batch])

    def _both(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        last = self.ids[..., sizes.keys - sizes.queries :]
        return (last if self.query_ids is None else self.query_ids), self.ids

    def _runs(self, sizes: Sizes) -> tuple[list[list[tuple[int, int, int]]], ...]:
        if self.query_ids is None and sizes.queries == sizes.keys:
            return self._key_runs, self._key_runs
        return _equal_runs(self._both(sizes)[0]), self._key_runs

    @cached_property
    def _key_runs(self) -> list[list[tuple[int, int, int]]]:
        return _equal_runs(self.ids)

    def __repr__(self) -> str:
        return f"Documents(ids {tuple(self.ids.shape)})"


@dataclass(frozen=True, init=False, eq=False)
class Padding(Mask):
    """Real keys only: the first `lengths[b]` of each batch row, or those where `keep` (batch, keys) is True or 1."""

    lengths: tuple[int, ...] | None
    keep: Tensor | None

    def __init__(self, lengths: Sequence[int] | Tensor | None = None, *, keep: Tensor | None = None) -> None:
        if (lengths is None) == (keep is None):
            raise ValueError("Padding: give either lengths (one per batch row) or keep=(batch, keys) of booleans")
        if keep is not None and (keep.is_floating_point() or keep.is_complex() or keep.dim() != 2):
            raise ShapeError(f"Padding: keep must be (batch, keys) booleans, got {tuple(keep.shape)} {keep.dtype}")
        if keep is not None and keep.dtype != torch.bool:
            if not ((keep == 0) | (keep == 1)).all():
                raise ValueError("Padding: keep must hold 0 and 1 only, as an attention_mask does; got other integers")
            keep = keep.to(torch.bool)
        if isinstance(lengths, Tensor):
            lengths = lengths.reshape(-1).tolist()
        object.__setattr__(self, "lengths", None if lengths is None else tuple(int(length) for length in lengths))
        object.__setattr__(self, "keep", None if keep is None else keep.clone())  # what is read off it once is kept

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        shape = torch.broadcast_shapes(query.shape, key.shape)
        if self.lengths is not None:
            return key.expand(shape) < _stacked(self.lengths, len(shape), key.device)
        assert self.keep is not None
        return self.keep.to(key.device)[:, None, key.expand(shape)]

    def lower(self, sizes: Sizes) -> Lowered:
        if sum(len(runs) for runs in self._runs) > 2 * len(self._runs):
            return Lowered((regions.band(sizes.queries, sizes.keys, None, None),), self.keep)
        return Lowered(tuple(_columns(sizes, runs) for runs in self._runs))

    def check(self, sizes: Sizes) -> None:
        if self.keep is not None and tuple(self.keep.shape) != (sizes.batch, sizes.keys):
            raise ShapeError(
                f"Padding: keep must be ({sizes.batch}, {sizes.keys}) for this attention, got {tuple(self.keep.shape)}"
            )
        if self.lengths is not None:
            _check_batch(self, self.lengths, sizes)
            if max(self.lengths) > sizes.keys or min(self.lengths) < 0:
                raise ShapeError(
                    f"Padding: lengths {self.lengths} do not lie in 0 ... {sizes.keys}, the number of keys"
                )

    def narrow(self, batch: slice, heads: slice | list[int]) -> Padding:
        if self.keep is not None:
            return Padding(keep=self.keep[batch])
        assert self.lengths is not None
        return Padding(_narrowed(self.lengths, batch))

    @cached_property
    def _runs(self) -> list[list[tuple[int, int]]]:
        """The stretches of real keys in each batch row."""
        if self.lengths is not None:
            return [[(0, length)] for length in self.lengths]
        assert self.keep is not None
        return [[(start, stop) for start, stop, kept in row if kept] for row in _equal_runs(self.keep)]

    def __repr__(self) -> str:
        return f"Padding(lengths {self.lengths})" if self.keep is None else f"Padding(keep {tuple(self.keep.shape)})"


def from_bool(*, attend: Tensor | None = None, drop: Tensor | None = None) -> Mask:
    """A mask from a boolean tensor that broadcasts to (batch, heads, queries, keys); say what True means.

    The tensor may be large, so it is held and not copied: do not change it in place.

    >>> from_bool(drop=torch.tensor([[False, True], [False, False]]))
    from_bool(attend=(2, 2))
    """
    if (attend is None) == (drop is None):
        raise ValueError("from_bool: say what True means, with either attend=tensor or drop=tensor")
    given = attend if attend is not None else drop
    assert given is not None
    if given.dtype != torch.bool:
        raise ShapeError(
            f"from_bool: wants booleans, got {given.dtype}; numbers that are added to scores are a Bias, not a mask"
        )
    if given.dim() < 2:
        raise ShapeError(f"from_bool: wants (..., queries, keys), got {tuple(given.shape)}")
    return Dense(given if attend is not None else ~given)


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A boolean tensor that somebody already holds; True attends."""

    attend: Tensor

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        table = self.attend.to(key.device)
        query, key = torch.broadcast_tensors(query, key)
        row = query if table.shape[-2] > 1 else torch.zeros_like(query)
        column = key if table.shape[-1] > 1 else torch.zeros_like(key)
        found = table[..., row, column]
        return found if table.dim() == 2 else found[(None,) * (4 - table.dim())]

    def lower(self, sizes: Sizes) -> Lowered | None:
        *leading, rows, columns = self.attend.shape
        key_only = rows == 1 and columns == sizes.keys and (not leading or leading[-1] == 1)
        if not key_only:
            return None
        return Lowered((regions.band(sizes.queries, sizes.keys, None, None),), self.attend.reshape(-1, columns))

    def check(self, sizes: Sizes) -> None:
        check_broadcast("from_bool", self.attend.shape, sizes)

    def narrow(self, batch: slice, heads: slice | list[int]) -> Dense:
        table = self.attend[(None,) * (4 - self.attend.dim())]
        return Dense(table[batch if table.shape[0] > 1 else slice(None), heads if table.shape[1] > 1 else slice(None)])

    def __repr__(self) -> str:
        return f"from_bool(attend={tuple(self.attend.shape)})"


def _columns(sizes: Sizes, runs: list[tuple[int, int]]) -> tuple[Region, ...]:
    """All rows of the given stretches of columns."""
    if not sizes.queries:
        return ()
    return tuple(regions.rectangle(0, sizes.queries, start, stop) for start, stop in runs if stop > start)


def _equal_runs(values: Tensor) -> list[list[tuple[int, int, int]]]:
    """The stretches (start, stop, value) of equal neighbours in each row of a (n,) or (batch, n) tensor."""
    table = []
    for row in values.reshape(-1, values.shape[-1]).cpu():
        kept, counts = torch.unique_consecutive(row, return_counts=True)
        stops = counts.cumsum(0).tolist()
        table.append(list(zip([0, *stops[:-1]], stops, kept.tolist(), strict=True)) if stops else [])
    return table


def _integers(value: Integers | None) -> int | tuple[int, ...] | None:
    """None and one number as they are, several as a tuple."""
    if value is None or isinstance(value, Integral):
        return None if value is None else int(value)
    if isinstance(value, Tensor):
        return int(value) if value.dim() == 0 else tuple(value.reshape(-1).tolist())
    return tuple(int(number) for number in value)  # pyright: ignore[reportGeneralTypeIssues]


def _narrowed(value: Numbers, batch: slice) -> Numbers:
    """One number stays; of one per batch row, those of these rows."""
    return value[batch] if isinstance(value, tuple) and len(value) > 1 else value  # pyright: ignore[reportReturnType]


def _stacked(value: int | tuple[int, ...], dimensions: int, device: torch.device) -> int | Tensor:
    """One number as it is; one per batch row as (batch, 1, 1 ...), to broadcast against (batch, heads, *S)."""
    if isinstance(value, int):
        return value
    return torch.tensor(value, device=device).reshape(-1, 1, *(1,) * dimensions)


def _check_batch(mask: Mask, value: int | tuple[int, ...] | None, sizes: Sizes) -> None:
    if isinstance(value, tuple) and len(value) not in (1, sizes.batch):
        raise ShapeError(f"{mask}: has one number for each of {len(value)} batch rows, the query has {sizes.batch}")
