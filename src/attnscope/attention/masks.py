"""The masks: which query attends to which key.

`Full`, `Causal`, `Window`, `Prefix`, `Documents`, `Padding` and `from_bool`. If there are fewer queries than keys, the
queries are the last ones: row i is at position i + keys - queries unless an offset is given. Memory: the caller's
tensors, never n x n.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from operator import index
from typing import TypeVar

import torch
from torch import Tensor

from attnscope.attention import regions
from attnscope.attention.algebra import Mask, RegionMask, Sizes, check_broadcast
from attnscope.attention.block_sizes import block_sizes
from attnscope.attention.regions import Region
from attnscope.attention.transfers import to_device
from attnscope.errors import ShapeError

MAX_REGIONS = 16_384  # with more regions, evaluating the predicate block by block is cheaper

Integers = int | Sequence[int] | Tensor
Numbers = TypeVar("Numbers", bound=int | tuple[int, ...] | None)


@dataclass(frozen=True)
class Full(Mask):
    """Every query attends to every key."""

    @property
    def is_static(self) -> bool:
        return True

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=query.device)

    def to_regions(self, sizes: Sizes) -> RegionMask:
        return RegionMask((regions.band(sizes.queries, sizes.keys, None, None),))


class _Band(Mask):
    """Keys between two diagonals around the query's own position; the base of Causal and Window."""

    offset: int | tuple[int, ...] | None

    @property
    def is_static(self) -> bool:
        return True

    @abstractmethod
    def _reach(self) -> tuple[int | None, int]:
        """Return how many keys before the query (None: all) and after it are allowed."""

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        distance = key - (query + _per_batch_row(self._offsets(sizes), query.dim(), key.device))
        before, after = self._reach()
        return distance <= after if before is None else (distance <= after) & (distance >= -before)

    def to_regions(self, sizes: Sizes) -> RegionMask:
        before, after = self._reach()

        def around(offset: int) -> tuple[Region, ...]:
            lowest = None if before is None else offset - before
            return regions.band(sizes.queries, sizes.keys, lowest, offset + after)

        offsets = self._offsets(sizes)
        return RegionMask(tuple(around(offset) for offset in ((offsets,) if isinstance(offsets, int) else offsets)))

    def check(self, sizes: Sizes) -> None:
        _check_batch(self, self.offset, sizes)

    def _offsets(self, sizes: Sizes) -> int | tuple[int, ...]:
        return sizes.keys - sizes.queries if self.offset is None else self.offset


@dataclass(frozen=True, init=False)
class Causal(_Band):
    """Query i attends to keys j <= i + offset.

    Args:
        offset: The position of the first query, one int or one per batch row, for example in a static KV cache. By
            default the queries are the last of the keys, so the last query attends to all of them.

    >>> from attnscope.attention.algebra import Sizes
    >>> Causal().to_dense(Sizes(batch=1, heads=1, queries=2, keys=3))[0, 0]
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """

    offset: int | tuple[int, ...] | None = None

    def __init__(self, offset: Integers | None = None) -> None:
        object.__setattr__(self, "offset", _to_ints(offset))

    def _reach(self) -> tuple[None, int]:
        return None, 0

    def narrow(self, batch: slice, heads: slice | list[int]) -> Causal:
        return Causal(_select_rows(self.offset, batch))

    def __repr__(self) -> str:
        return "Causal()" if self.offset is None else f"Causal(offset={self.offset})"


@dataclass(frozen=True, init=False)
class Window(_Band):
    """Sliding-window attention: `Window(w)` allows the last w keys including the token itself, j in (i - w, i].

    `Window(before=b, after=a)` allows j in [i - b, i + a], for encoders.

    Args:
        width: The number of keys including the token itself; give it or `before` and `after`.
        before: The number of keys before the token.
        after: The number of keys after the token.
        offset: The position of the first query, as in `Causal`.
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
            raise ValueError("Window(): expected a width, or before= and after=, got neither")
        if width is not None and (before is not None or after is not None):
            raise ValueError(
                f"Window: expected a width or before= and after=, got width={width}, before={before}, after={after}"
            )
        if width is not None and width < 1:
            raise ValueError(f"Window: expected a width of at least 1 (it includes the token itself), got {width}")
        before, after = index(before or 0), index(after or 0)
        if before < 0 or after < 0:
            raise ValueError(f"Window: expected before and after of at least 0, got before={before}, after={after}")
        object.__setattr__(self, "before", before if width is None else index(width) - 1)
        object.__setattr__(self, "after", after)
        object.__setattr__(self, "offset", _to_ints(offset))

    def _reach(self) -> tuple[int, int]:
        return self.before, self.after

    def narrow(self, batch: slice, heads: slice | list[int]) -> Window:
        return Window(before=self.before, after=self.after, offset=_select_rows(self.offset, batch))

    def __repr__(self) -> str:
        shape = f"before={self.before}, after={self.after}" if self.after else f"{self.before + 1}"
        return f"Window({shape})" if self.offset is None else f"Window({shape}, offset={self.offset})"


@dataclass(frozen=True, init=False)
class Prefix(Mask):
    """Every query attends to the keys j < length.

    `Causal() | Prefix(p)` is the mask of a prefix language model.

    Args:
        length: The number of keys, one int or one per batch row.
    """

    length: int | tuple[int, ...]

    @property
    def is_static(self) -> bool:
        return True

    def __init__(self, length: Integers) -> None:
        object.__setattr__(self, "length", _to_ints(length))

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        shape = torch.broadcast_shapes(query.shape, key.shape)
        return key.expand(shape) < _per_batch_row(self.length, len(shape), key.device)

    def to_regions(self, sizes: Sizes) -> RegionMask:
        lengths = (self.length,) if isinstance(self.length, int) else self.length
        return RegionMask(tuple(_column_regions(sizes, [(0, min(length, sizes.keys))]) for length in lengths))

    def narrow(self, batch: slice, heads: slice | list[int]) -> Prefix:
        return Prefix(_select_rows(self.length, batch))

    def check(self, sizes: Sizes) -> None:
        _check_batch(self, self.length, sizes)


@dataclass(frozen=True, init=False, eq=False)
class Documents(Mask):
    """Block-diagonal mask: a query attends to the keys of its own document, those with an equal id.

    Args:
        ids: The document of each key, (keys,) or (batch, keys). It is copied.
        query_ids: The document of each query, (queries,) or (batch, queries), for cross-attention. By default the
            queries are the last of the keys.
    """

    ids: Tensor
    query_ids: Tensor | None

    def __init__(self, ids: Tensor | Sequence[int], query_ids: Tensor | Sequence[int] | None = None) -> None:
        # Copies, because the runs of equal ids are cached.
        object.__setattr__(self, "ids", torch.as_tensor(ids).clone())
        object.__setattr__(self, "query_ids", None if query_ids is None else torch.as_tensor(query_ids).clone())

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        queries, keys = self._query_and_key_ids(sizes)
        first, second = to_device(queries, query.device)[..., query], to_device(keys, key.device)[..., key]
        if keys.dim() == 1:
            return first == second
        return first[:, None] == second[:, None]

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        per_row = []
        for rows, columns in zip(*self._runs(sizes), strict=True):
            by_id: dict[int, list[tuple[int, int]]] = {}
            for start, stop, identity in columns:
                by_id.setdefault(identity, []).append((start, stop))
            if sum(len(by_id.get(identity, ())) for _, _, identity in rows) > MAX_REGIONS:
                return None
            found = [(a, b, *run) for a, b, identity in rows for run in by_id.get(identity, ())]
            per_row.append(tuple(regions.rectangle(*corners) for corners in found))
        return RegionMask(tuple(per_row))

    def check(self, sizes: Sizes) -> None:
        for name, ids, length in (("ids", self.ids, sizes.keys), ("query_ids", self.query_ids, sizes.queries)):
            if ids is not None and tuple(ids.shape) not in ((length,), (sizes.batch, length)):
                expected = f"({length},) or ({sizes.batch}, {length})"
                raise ShapeError(f"Documents: expected {name} of shape {expected}, got {tuple(ids.shape)}")
        if self.query_ids is None and sizes.queries > sizes.keys:
            raise ShapeError(
                f"Documents: expected at most {sizes.keys} queries, one per key, got {sizes.queries}; pass query_ids"
            )
        if self.query_ids is not None and self.query_ids.dim() != self.ids.dim():
            raise ShapeError(
                f"Documents: expected ids and query_ids both 1-D or both 2-D, got {self.ids.dim()}-D and "
                f"{self.query_ids.dim()}-D"
            )

    def narrow(self, batch: slice, heads: slice | list[int]) -> Documents:
        if self.ids.dim() == 1:
            return self
        return Documents(self.ids[batch], None if self.query_ids is None else self.query_ids[batch])

    def _query_and_key_ids(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        last = self.ids[..., sizes.keys - sizes.queries :]
        return (last if self.query_ids is None else self.query_ids), self.ids

    def _runs(self, sizes: Sizes) -> tuple[list[list[tuple[int, int, int]]], ...]:
        if self.query_ids is None and sizes.queries == sizes.keys:
            return self._key_runs, self._key_runs
        return _find_runs(self._query_and_key_ids(sizes)[0]), self._key_runs

    @cached_property
    def _key_runs(self) -> list[list[tuple[int, int, int]]]:
        return _find_runs(self.ids)

    def __repr__(self) -> str:
        return f"Documents(ids {tuple(self.ids.shape)})"


@dataclass(frozen=True, init=False, eq=False)
class Padding(Mask):
    """Padding mask: no query attends to padded keys.

    Args:
        lengths: The number of keys of each batch row that are not padding, for padding on the right.
        keep: Booleans or 0 and 1 of shape (batch, keys), as an `attention_mask`: True or 1 for keys that are not
            padding. Give `lengths` or `keep`. It is copied.
    """

    lengths: tuple[int, ...] | None
    keep: Tensor | None

    def __init__(self, lengths: Sequence[int] | Tensor | None = None, *, keep: Tensor | None = None) -> None:
        if (lengths is None) == (keep is None):
            raise ValueError("Padding: expected either lengths (one per batch row) or keep= (batch, keys) of booleans")
        if keep is not None and (keep.is_floating_point() or keep.is_complex() or keep.dim() != 2):
            raise ShapeError(f"Padding: expected keep (batch, keys) of booleans, got {tuple(keep.shape)} {keep.dtype}")
        if keep is not None and keep.dtype != torch.bool:
            if not ((keep == 0) | (keep == 1)).all():
                raise ValueError(
                    "Padding: expected keep to contain only 0 and 1, as an attention_mask, got other integers"
                )
            keep = keep.to(torch.bool)
        if isinstance(lengths, Tensor):
            lengths = lengths.reshape(-1).tolist()
        object.__setattr__(self, "lengths", None if lengths is None else tuple(int(length) for length in lengths))
        object.__setattr__(self, "keep", None if keep is None else keep.clone())  # a copy, because its runs are cached

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        shape = torch.broadcast_shapes(query.shape, key.shape)
        if self.lengths is not None:
            return key.expand(shape) < _per_batch_row(self.lengths, len(shape), key.device)
        assert self.keep is not None
        return to_device(self.keep, key.device)[:, None, key.expand(shape)]

    def to_regions(self, sizes: Sizes) -> RegionMask:
        is_remote = self.keep is not None and not block_sizes(self.keep.device).can_read
        if is_remote or sum(len(runs) for runs in self._runs) > 2 * len(self._runs):
            return RegionMask((regions.band(sizes.queries, sizes.keys, None, None),), self.keep)
        return RegionMask(tuple(_column_regions(sizes, runs) for runs in self._runs))

    def check(self, sizes: Sizes) -> None:
        if self.keep is not None and tuple(self.keep.shape) != (sizes.batch, sizes.keys):
            raise ShapeError(
                f"Padding: expected keep of shape ({sizes.batch}, {sizes.keys}), got {tuple(self.keep.shape)}"
            )
        if self.lengths is not None:
            _check_batch(self, self.lengths, sizes)
            if any(not 0 <= length <= sizes.keys for length in self.lengths):
                raise ShapeError(
                    f"Padding: expected lengths from 0 to {sizes.keys}, the number of keys, got {self.lengths}"
                )

    def narrow(self, batch: slice, heads: slice | list[int]) -> Padding:
        if self.keep is not None:
            return Padding(keep=self.keep[batch])
        assert self.lengths is not None
        return Padding(_select_rows(self.lengths, batch))

    @cached_property
    def _runs(self) -> list[list[tuple[int, int]]]:
        """The runs (start, stop) of keys that are not padding, per batch row."""
        if self.lengths is not None:
            return [[(0, length)] for length in self.lengths]
        assert self.keep is not None
        return [[(start, stop) for start, stop, kept in row if kept] for row in _find_runs(self.keep)]

    def __repr__(self) -> str:
        return f"Padding(lengths {self.lengths})" if self.keep is None else f"Padding(keep {tuple(self.keep.shape)})"


def from_bool(*, attend: Tensor | None = None, drop: Tensor | None = None) -> Mask:
    """Make a mask from a boolean tensor that broadcasts to (batch, heads, queries, keys).

    The tensor may be large, so it is not copied: do not change it in place.

    Args:
        attend: True where a query attends to a key. Give `attend` or `drop`.
        drop: True where a query does not attend to a key.

    Returns:
        A mask that refers to the tensor.

    Raises:
        ValueError: Both or neither of `attend` and `drop` are given.
        ShapeError: The tensor is not boolean, or has fewer than two axes.

    >>> from_bool(drop=torch.tensor([[False, True], [False, False]]))
    from_bool(attend=(2, 2))
    """
    if (attend is None) == (drop is None):
        raise ValueError("from_bool: expected either attend=tensor or drop=tensor, which says what True means")
    given = attend if attend is not None else drop
    assert given is not None
    if given.dtype != torch.bool:
        raise ShapeError(
            f"from_bool: expected booleans, got {given.dtype}; to add numbers to the scores, use score_mod=Bias(tensor)"
        )
    if given.dim() < 2:
        raise ShapeError(f"from_bool: expected (..., queries, keys), got {tuple(given.shape)}")
    return DenseMask(given if attend is not None else ~given)


@dataclass(frozen=True, eq=False)
class DenseMask(Mask):
    """A mask that is a boolean tensor: True where a query attends to a key."""

    attend: Tensor

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        table, device = self.attend, key.device
        query, key = torch.broadcast_tensors(query.to(table.device), key.to(table.device))
        row = query if table.shape[-2] > 1 else torch.zeros_like(query)
        column = key if table.shape[-1] > 1 else torch.zeros_like(key)
        found = to_device(table[..., row, column], device)  # of a block, not of the whole table
        return found if table.dim() == 2 else found[(None,) * (4 - table.dim())]

    def to_regions(self, sizes: Sizes) -> RegionMask | None:
        *leading, rows, columns = self.attend.shape
        key_only = rows == 1 and columns == sizes.keys and (not leading or leading[-1] == 1)
        if not key_only:
            return None
        return RegionMask((regions.band(sizes.queries, sizes.keys, None, None),), self.attend.reshape(-1, columns))

    def check(self, sizes: Sizes) -> None:
        check_broadcast("from_bool", self.attend.shape, sizes)

    def narrow(self, batch: slice, heads: slice | list[int]) -> DenseMask:
        table = self.attend[(None,) * (4 - self.attend.dim())]
        return DenseMask(
            table[batch if table.shape[0] > 1 else slice(None), heads if table.shape[1] > 1 else slice(None)]
        )

    def __repr__(self) -> str:
        return f"from_bool(attend={tuple(self.attend.shape)})"


def _column_regions(sizes: Sizes, runs: list[tuple[int, int]]) -> tuple[Region, ...]:
    """Return all rows of the given runs of columns."""
    if not sizes.queries:
        return ()
    return tuple(regions.rectangle(0, sizes.queries, start, stop) for start, stop in runs if stop > start)


def _find_runs(values: Tensor) -> list[list[tuple[int, int, int]]]:
    """Return the runs (start, stop, value) of equal neighbours in each row of a (n,) or (batch, n) tensor."""
    table = []
    for row in (values if values.dim() > 1 else values[None]).cpu():
        kept, counts = torch.unique_consecutive(row, return_counts=True)
        stops = counts.cumsum(0).tolist()
        table.append(list(zip([0, *stops[:-1]], stops, kept.tolist(), strict=True)) if stops else [])
    return table


def _to_ints(value: Integers | None) -> int | tuple[int, ...] | None:
    """Return None and one number unchanged, several numbers as a tuple."""
    if value is None or isinstance(value, Integral):
        return None if value is None else int(value)
    if isinstance(value, Tensor):
        return int(value) if value.dim() == 0 else tuple(value.reshape(-1).tolist())
    if not isinstance(value, Iterable):
        raise TypeError(f"expected a whole number, or one per batch row, got {value!r}")
    return tuple(int(number) for number in value)


def _select_rows(value: Numbers, batch: slice) -> Numbers:
    """Return one number unchanged; of one per batch row, those of these rows."""
    return value[batch] if isinstance(value, tuple) and len(value) > 1 else value  # pyright: ignore[reportReturnType]


def _per_batch_row(value: int | tuple[int, ...], dimensions: int, device: torch.device) -> int | Tensor:
    """Return one number unchanged, and one per batch row as (batch, 1, 1 ...) to broadcast to (batch, heads, *S)."""
    if isinstance(value, int):
        return value
    return to_device(torch.tensor(value), device).reshape(-1, 1, *(1,) * dimensions)


def _check_batch(mask: Mask, value: int | tuple[int, ...] | None, sizes: Sizes) -> None:
    if isinstance(value, tuple) and len(value) not in (1, sizes.batch):
        raise ShapeError(f"{mask}: expected one number per batch row, {sizes.batch}, got {len(value)}")
