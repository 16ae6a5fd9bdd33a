"""What can be read, multiplied and drawn like a matrix: the matrix itself, its transpose, weighted and merged forms.

A `Readable` gives blocks and products in four dimensions (batch, heads, ...); everything else about brackets, `@`,
`.T` and shapes is written here once. Memory: what is asked for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnscope.errors import ShapeError, UnsupportedError
from attnscope.matrix.indexing import Index, Key, choose, split

BLOCK_CELLS = 2**22  # tokens' weights that are merged into words at a time
DENSE_LIMIT = 2**28  # bytes of a dense block that are built without asking

Answer = TypeVar("Answer")


def undisturbed(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """A method that computes in its own precision and without gradients, whatever surrounds the call."""

    @wraps(method)
    def run(self: Readable, *arguments: object, **options: object) -> Answer:
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            return method(self, *arguments, **options)

    return run


class Readable(ABC):
    """Something with rows and columns that is not built: `A[rows, columns]`, `A @ values`, `A.T`, `A.pooled(...)`."""

    _leading: tuple[int, ...]

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """(..., rows, columns)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of all results."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the results are."""

    @property
    @abstractmethod
    def _batch_and_heads(self) -> tuple[int, int]:
        """The first two axes of blocks and products; the leading axes are those of them that are left."""

    @abstractmethod
    def _block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The cells of some rows and columns, (batch, heads, rows, columns)."""

    @abstractmethod
    def _times(self, values: Tensor) -> Tensor:
        """Its product with values (batch, heads, columns, width)."""

    @abstractmethod
    def _transposed_times(self, values: Tensor) -> Tensor:
        """The product of its transpose with values (batch, heads, rows, width)."""

    @abstractmethod
    def _pooled(self, rows: int, columns: int, how: str) -> Tensor:
        """(batch, heads, row bins, column bins)."""

    @property
    def T(self) -> Readable:  # noqa: N802 - as numpy and torch write it
        """The transpose, as a view."""
        return Transposed(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The whole matrix for numpy and matplotlib, where it is small enough for `to_dense`."""
        if copy is False:
            raise ValueError("numpy: an attention matrix is computed when it is read, so it cannot be shared")
        return self.to_dense().cpu().numpy().astype(dtype, copy=False)

    def __getitem__(self, key: Key) -> Tensor:
        """Exact weights, as a tensor of this shape would give them for ints and slices.

        Lists choose several queries and several keys, and every pair of them is read. `at` reads single pairs.
        """
        *leading, first, second = split(key, self.shape)
        matrix, kept = self, []
        for index in leading:
            if isinstance(index, int):
                matrix = matrix._at_axis(len(kept), index)
            else:
                kept.append(index)
        return matrix._read(first, second)[tuple(kept)]

    def _at_axis(self, at: int, index: int) -> Readable:
        """The part at a position along one of the leading axes, which goes away."""
        raise UnsupportedError(
            f"A[...]: batch and head cannot be chosen from a {type(self).__name__.lower()} matrix; choose them first, "
            "with .batch(b) and .head(h)"
        )

    @undisturbed
    def _read(self, first: Index, second: Index) -> Tensor:
        device = self.device
        rows = choose(first, self.shape[-2], device, "rows")
        columns = choose(second, self.shape[-1], device, "columns")
        self._refuse_huge(len(rows.positions), len(columns.positions), DENSE_LIMIT)
        block = self._shaped(self._block(rows.positions, columns.positions))
        block = block.squeeze(-1) if columns.single else block
        return block.squeeze(-1 if columns.single else -2) if rows.single else block

    @undisturbed
    def __matmul__(self, values: Tensor) -> Tensor:
        """Any statistic that is linear along a row: values (columns,), (columns, width) or (..., columns, width)."""
        length = self.shape[-1]
        if values.dim() < 1 or (values.shape[-1] if values.dim() == 1 else values.shape[-2]) != length:
            raise ShapeError(f"A @ values: wants ({length},) or (..., {length}, width), got {tuple(values.shape)}")
        vector = values.dim() == 1
        values = (values[:, None] if vector else values).to(self.device, self.dtype)
        if values.dim() > 2 and tuple(values.shape[:-2]) != self._leading:
            raise ShapeError(
                f"A @ values: leading axes {tuple(values.shape[:-2])} differ from the matrix's {self._leading}"
            )
        batch, heads = self._batch_and_heads
        if values.dim() == 2:
            values = values.expand(batch, heads, -1, -1)
        else:
            values = values.reshape(batch, heads, *values.shape[-2:])
        result = self._shaped(self._times(values))
        return result.squeeze(-1) if vector else result

    @undisturbed
    def pooled(self, rows: int, columns: int, how: str = "density") -> Tensor:
        """A small picture, (..., rows, columns): mean weight of the allowed cells, "mass" or "max" of each bin."""
        return self._shaped(self._pooled(rows, columns, how))

    @undisturbed
    def to_dense(self, *, limit: int = DENSE_LIMIT) -> Tensor:
        """The whole matrix; refused above `limit` bytes."""
        self._refuse_huge(self.shape[-2], self.shape[-1], limit)
        rows, columns = (torch.arange(size, device=self.device) for size in self.shape[-2:])
        return self._shaped(self._block(rows, columns))

    def _shaped(self, tensor: Tensor) -> Tensor:
        """A result (batch, heads, ...) with the leading axes that the matrix has."""
        return tensor.reshape(*self._leading, *tensor.shape[2:])

    def _refuse_huge(self, rows: int, columns: int, limit: int) -> None:
        size = math.prod(self._leading) * rows * columns * self.dtype.itemsize
        if size > limit:
            raise ShapeError(
                f"a dense block of {rows:,} x {columns:,} cells takes {size:,} bytes, more than {limit:,}; "
                "read smaller blocks, use pooled(), @ or a statistic, or say to_dense(limit=...)"
            )


class View(Readable):
    """Something that reads its cells from a matrix."""

    def __init__(self, matrix: Readable) -> None:
        self._matrix, self._leading = matrix, matrix._leading

    @property
    def dtype(self) -> torch.dtype:
        """As the matrix."""
        return self._matrix.dtype

    @property
    def device(self) -> torch.device:
        """As the matrix."""
        return self._matrix.device

    @property
    def _batch_and_heads(self) -> tuple[int, int]:
        return self._matrix._batch_and_heads

    def _pooled(self, rows: int, columns: int, how: str) -> Tensor:
        raise UnsupportedError(
            "pooled: not known for weighted or merged matrices; read blocks of them, or pool the weights"
        )


class Transposed(View):
    """A matrix with rows and columns exchanged."""

    @property
    def shape(self) -> torch.Size:
        """(..., columns, rows) of the matrix."""
        *leading, rows, columns = self._matrix.shape
        return torch.Size((*leading, columns, rows))

    @property
    def T(self) -> Readable:  # noqa: N802
        """The matrix itself."""
        return self._matrix

    def _at_axis(self, at: int, index: int) -> Readable:
        return Transposed(self._matrix._at_axis(at, index))

    def _block(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self._matrix._block(columns, rows).mT

    def _times(self, values: Tensor) -> Tensor:
        return self._matrix._transposed_times(values)

    def _transposed_times(self, values: Tensor) -> Tensor:
        return self._matrix._times(values)

    def _pooled(self, rows: int, columns: int, how: str) -> Tensor:
        if how == "mass":
            raise UnsupportedError("pooled(how='mass'): columns of weights have no mass to keep; use density or max")
        return self._matrix._pooled(columns, rows, how).mT

    def __getattr__(self, name: str):
        if name in ROW_STATISTICS:
            raise AttributeError(
                f"A.T.{name}: the rows of a transposed matrix do not sum to 1, so row statistics of it mean nothing; "
                f"use A.{name}, or A.T @ values"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


ROW_STATISTICS = ("lse", "entropy", "renyi", "effective_keys", "received", "mass", "distance", "topk", "max")


class Weighted(View):
    """Weights times a number for each key, such as the length of what it would write; rows no longer sum to 1."""

    def __init__(self, matrix: Readable, factors: Tensor) -> None:
        super().__init__(matrix)
        self.factors = factors.to(matrix.dtype)

    @property
    def shape(self) -> torch.Size:
        """As the matrix."""
        return self._matrix.shape

    def _block(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self._matrix._block(rows, columns) * self.factors[:, :, None, columns]

    def _times(self, values: Tensor) -> Tensor:
        return self._matrix._times(self.factors[..., None] * values)

    def _transposed_times(self, values: Tensor) -> Tensor:
        return self.factors[..., None] * self._matrix._transposed_times(values)


class Merged(View):
    """Tokens merged into words: the mean over the queries of a word, the sum over its keys, so that rows sum to 1."""

    def __init__(
        self, matrix: Readable, spans: Sequence[tuple[int, int]], key_spans: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__(matrix)
        self._rows = _checked_spans(spans, matrix.shape[-2])
        self._columns = _checked_spans(key_spans, matrix.shape[-1])

    @property
    def shape(self) -> torch.Size:
        """(..., words, words)."""
        return torch.Size((*self._leading, len(self._rows), len(self._columns)))

    def _block(self, rows: Tensor, columns: Tensor) -> Tensor:
        down, row_of = self._tokens(self._rows, rows)
        across, column_of = self._tokens(self._columns, columns)
        shape = (*self._batch_and_heads, len(rows), len(columns))
        total = torch.zeros(shape, dtype=self.dtype, device=self.device)
        high = max(1, BLOCK_CELLS // max(len(across) * shape[0] * shape[1], 1))
        for some, words in zip(down.split(high), row_of.split(high), strict=True):
            cells = self._matrix._block(some, across)
            summed = cells.new_zeros(*cells.shape[:3], len(columns)).index_add_(3, column_of, cells)
            total.index_add_(2, words, summed)
        return total / row_of.bincount(minlength=len(rows)).clamp(min=1)[:, None]

    def _times(self, values: Tensor) -> Tensor:
        rows, columns = self._word_of(self._rows, self.shape[-2]), self._word_of(self._columns, self.shape[-1])
        found = self._matrix._times(_read(values, columns))
        return _added(found, rows, len(self._rows)) / _lengths(self._rows, found)

    def _transposed_times(self, values: Tensor) -> Tensor:
        rows, columns = self._word_of(self._rows, self.shape[-2]), self._word_of(self._columns, self.shape[-1])
        found = self._matrix._transposed_times(_read(values / _lengths(self._rows, values), rows))
        return _added(found, columns, len(self._columns))

    def _word_of(self, spans: list[tuple[int, int]], words: int) -> Tensor:
        return torch.repeat_interleave(
            torch.arange(words, device=self.device), torch.tensor([b - a for a, b in spans], device=self.device)
        )

    def _tokens(self, spans: list[tuple[int, int]], words: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of some words, and for each the place of its word among them."""
        found = [(token, at) for at, word in enumerate(words.tolist()) for token in range(*spans[word])]
        tokens, places = zip(*found, strict=True) if found else ((), ())
        first, second = (torch.tensor(part, dtype=torch.long, device=self.device) for part in (tokens, places))
        return first, second


def _read(values: Tensor, index: Tensor) -> Tensor:
    return values[:, :, index]


def _added(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(*values.shape[:2], count, values.shape[-1]).index_add_(2, index, values)


def _lengths(spans: list[tuple[int, int]], like: Tensor) -> Tensor:
    return torch.tensor([stop - start for start, stop in spans], dtype=like.dtype, device=like.device)[:, None]


def _checked_spans(spans: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    spans = [(int(start), int(stop)) for start, stop in spans]
    stops = [0, *(stop for _, stop in spans)]
    if [start for start, _ in spans] != stops[:-1] or stops[-1] != length or any(a >= b for a, b in spans):
        raise ShapeError(f"merged: spans (start, stop) must follow each other from 0 to {length} without gaps")
    return spans


def writing_norms(value: Tensor, output: Tensor | None, heads: int) -> Tensor:
    """The norm of what each key writes, (batch, heads, keys): of its value, or of value @ output of its head."""
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    value = value.repeat_interleave(heads // value.shape[1], dim=1)
    if output is None:
        return value.norm(dim=-1)
    if output.dim() != 3 or output.shape[0] != heads or output.shape[1] != value.shape[-1]:
        wanted = f"({heads} heads, {value.shape[-1]}, model dim)"
        raise ShapeError(f"weighted: output must be {wanted}, got {tuple(output.shape)}")
    # |v W|^2 = v (W W^T) v: the small square of each head, and never (keys x model dim).
    gram = output.to(value) @ output.to(value).mT
    return ((value @ gram) * value).sum(-1).clamp(min=0.0).sqrt()
