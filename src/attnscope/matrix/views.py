"""`MatrixView`, the interface of lazily computed matrices, and the transposed, value-weighted and merged views.

A `MatrixView` implements blocks and products in four dimensions (batch, heads, ...). Indexing, `@`, `.T` and shapes are
written here once. Memory: the requested result.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnscope.attention.spec import without_autocast
from attnscope.attention.transfers import to_device
from attnscope.errors import ShapeError, UnsupportedError
from attnscope.matrix.indexing import Index, Key, resolve_index, split_index
from attnscope.matrix.positions import Positions, bins_of_positions

BLOCK_CELLS = 2**22  # weights of tokens that are merged into words at a time
MAX_DENSE_BYTES = 2**28  # of a dense block, unless the caller passes another limit

Result = TypeVar("Result")


def no_grad_no_autocast(method: Callable[..., Result]) -> Callable[..., Result]:
    """Run a method without gradients and outside of any autocast."""

    @wraps(method)
    def run(self: MatrixView, *arguments: object, **options: object) -> Result:
        with torch.no_grad(), without_autocast(self.device):
            return method(self, *arguments, **options)

    return run


class MatrixView(ABC):
    """A matrix whose cells are computed on request: `A[rows, columns]`, `A @ values`, `A.T`, `A.pool(...)`."""

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
        """The device of all results."""

    @property
    @abstractmethod
    def _batch_and_heads(self) -> tuple[int, int]:
        """The sizes of the first two axes of blocks and products."""

    @abstractmethod
    def _block(self, rows: Positions, columns: Positions) -> Tensor:
        """The cells of some rows and columns, (batch, heads, rows, columns)."""

    @abstractmethod
    def _matmul(self, values: Tensor) -> Tensor:
        """The product with values (batch, heads, columns, width)."""

    @abstractmethod
    def _transposed_matmul(self, values: Tensor) -> Tensor:
        """The product of its transpose with values (batch, heads, rows, width)."""

    @abstractmethod
    def _pool(self, rows: int, columns: int, reduction: str) -> Tensor:
        """The pooled matrix, (batch, heads, row bins, column bins)."""

    @property
    def T(self) -> MatrixView:  # noqa: N802 - as numpy and torch write it
        """The transpose, as a view."""
        return Transposed(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The whole matrix for numpy and matplotlib, if it is small enough for `to_dense`."""
        if copy is False:
            raise ValueError("numpy: an attention matrix is computed on request, so copy=False is not supported")
        return self.to_dense().cpu().numpy().astype(dtype, copy=False)

    def __getitem__(self, key: Key) -> Tensor:
        """Exact weights, indexed as a tensor of this shape by ints and slices.

        Two lists select several queries and several keys and return every pair of them; `at` returns single pairs.

        Raises:
            ShapeError: the indices do not fit the axes, or the block is too large.
            IndexError: an index is out of range.
        """
        *leading, first, second = split_index(key, self.shape)
        matrix, kept = self, []
        for index in leading:
            if isinstance(index, int):
                matrix = matrix._select(len(kept), index)
            else:
                kept.append(index)
        return matrix._read(first, second)[tuple(kept)]

    def _select(self, at: int, index: int) -> MatrixView:
        """Select along one of the leading axes and drop it."""
        raise UnsupportedError(
            f"A[...]: cannot index batch and head of a {type(self).__name__} view; "
            "call .batch(b) and .head(h) on the matrix first"
        )

    @no_grad_no_autocast
    def _read(self, first: Index, second: Index) -> Tensor:
        device = self.device
        rows = resolve_index(first, self.shape[-2], device, "rows")
        columns = resolve_index(second, self.shape[-1], device, "columns")
        self._check_dense_size(len(rows.positions), len(columns.positions), MAX_DENSE_BYTES)
        block = self._reshape(self._block(rows.positions, columns.positions))
        block = block.squeeze(-1) if columns.single else block
        return block.squeeze(-1 if columns.single else -2) if rows.single else block

    @no_grad_no_autocast
    def __matmul__(self, values: Tensor) -> Tensor:
        """The product with values, as of a dense matrix.

        Args:
            values: (columns,), (columns, width) or (..., columns, width).

        Returns:
            (..., rows) or (..., rows, width).
        """
        length = self.shape[-1]
        if values.dim() < 1 or (values.shape[-1] if values.dim() == 1 else values.shape[-2]) != length:
            raise ShapeError(f"A @ values: expected ({length},) or (..., {length}, width), got {tuple(values.shape)}")
        vector = values.dim() == 1
        values = to_device(values[:, None] if vector else values, self.device, self.dtype)
        if values.dim() > 2 and tuple(values.shape[:-2]) != self._leading:
            raise ShapeError(f"A @ values: expected the leading axes {self._leading}, got {tuple(values.shape[:-2])}")
        batch, heads = self._batch_and_heads
        if values.dim() == 2:
            values = values.expand(batch, heads, -1, -1)
        else:
            values = values.reshape(batch, heads, *values.shape[-2:])
        result = self._reshape(self._matmul(values))
        return result.squeeze(-1) if vector else result

    @no_grad_no_autocast
    def pool(self, rows: int, columns: int, reduction: str = "density") -> Tensor:
        """Downsample the matrix to bins of nearly equal size.

        Args:
            rows: the number of bins along the queries.
            columns: the number of bins along the keys.
            reduction: "density", the mean over the cells that the mask allows; "mass", the sum over keys averaged over
                queries, so that rows still sum to 1; or "max".

        Returns:
            (..., rows, columns), with 0 for bins without an allowed cell.

        Raises:
            ValueError: more bins than rows or columns, or an unknown reduction.
        """
        return self._reshape(self._pool(rows, columns, reduction))

    @no_grad_no_autocast
    def to_dense(self, *, limit: int = MAX_DENSE_BYTES) -> Tensor:
        """The whole matrix as a tensor.

        Raises:
            ShapeError: it would take more than `limit` bytes.
        """
        self._check_dense_size(self.shape[-2], self.shape[-1], limit)
        rows, columns = (Positions(range(size), self.device) for size in self.shape[-2:])
        return self._reshape(self._block(rows, columns))

    def _reshape(self, tensor: Tensor) -> Tensor:
        """Reshape a result (batch, heads, ...) to the leading axes of the matrix."""
        return tensor.reshape((*self._leading, *tensor.shape[2:]))

    def _check_dense_size(self, rows: int, columns: int, limit: int) -> None:
        size = math.prod(self._leading) * rows * columns * self.dtype.itemsize
        if size > limit:
            raise ShapeError(
                f"a dense block of {rows:,} x {columns:,} cells takes {size:,} bytes, more than {limit:,}; "
                "read smaller blocks, use pool(), @ or a statistic, or pass to_dense(limit=...)"
            )


class DerivedView(MatrixView):
    """A view that reads its cells from another matrix."""

    def __init__(self, matrix: MatrixView) -> None:
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

    def _pool(self, rows: int, columns: int, reduction: str) -> Tensor:
        raise UnsupportedError(
            "pool: not supported for value-weighted or merged views; pool the matrix itself, or read blocks of the view"
        )


class Transposed(DerivedView):
    """The transpose of a matrix."""

    @property
    def shape(self) -> torch.Size:
        """(..., columns, rows) of the matrix."""
        *leading, rows, columns = self._matrix.shape
        return torch.Size((*leading, columns, rows))

    @property
    def T(self) -> MatrixView:  # noqa: N802
        """The matrix itself."""
        return self._matrix

    def _select(self, at: int, index: int) -> MatrixView:
        return Transposed(self._matrix._select(at, index))

    def _block(self, rows: Positions, columns: Positions) -> Tensor:
        return self._matrix._block(columns, rows).mT

    def _matmul(self, values: Tensor) -> Tensor:
        return self._matrix._transposed_matmul(values)

    def _transposed_matmul(self, values: Tensor) -> Tensor:
        return self._matrix._matmul(values)

    def _pool(self, rows: int, columns: int, reduction: str) -> Tensor:
        if reduction == "mass":
            raise UnsupportedError("pool(reduction='mass'): not supported for a transpose; use 'density' or 'max'")
        return self._matrix._pool(columns, rows, reduction).mT

    def __getattr__(self, name: str):
        if name in ROW_STATISTICS:
            raise AttributeError(
                f"A.T.{name}: the rows of a transposed matrix do not sum to 1, so it has no row statistics; "
                f"use A.{name} or A.T @ values"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


ROW_STATISTICS = ("lse", "entropy", "renyi_entropy", "effective_keys", "received", "mass", "distance", "topk", "max")


class ValueWeighted(DerivedView):
    """Weights times one factor per key, such as the norm of its value; rows no longer sum to 1."""

    def __init__(self, matrix: MatrixView, factors: Tensor) -> None:
        super().__init__(matrix)
        self.factors = factors.to(matrix.dtype)

    @property
    def shape(self) -> torch.Size:
        """As the matrix."""
        return self._matrix.shape

    def _block(self, rows: Positions, columns: Positions) -> Tensor:
        return self._matrix._block(rows, columns) * self.factors[:, :, None, columns.index]

    def _matmul(self, values: Tensor) -> Tensor:
        return self._matrix._matmul(self.factors[..., None] * values)

    def _transposed_matmul(self, values: Tensor) -> Tensor:
        return self.factors[..., None] * self._matrix._transposed_matmul(values)


class MergedTokens(DerivedView):
    """Tokens merged into words: the mean over the queries of a word, the sum over its keys."""

    def __init__(
        self, matrix: MatrixView, spans: Sequence[tuple[int, int]], key_spans: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__(matrix)
        self._rows = _check_spans(spans, matrix.shape[-2])
        self._columns = _check_spans(key_spans, matrix.shape[-1])

    @property
    def shape(self) -> torch.Size:
        """(..., words, words)."""
        return torch.Size((*self._leading, len(self._rows), len(self._columns)))

    def _block(self, rows: Positions, columns: Positions) -> Tensor:
        down, row_of = _find_tokens(self._rows, rows)
        across, column_of = _find_tokens(self._columns, columns)
        shape = (*self._batch_and_heads, len(rows), len(columns))
        total = torch.zeros(shape, dtype=self.dtype, device=self.device)
        high = max(1, BLOCK_CELLS // max(len(across) * shape[0] * shape[1], 1))
        for some in (slice(at, at + high) for at in range(0, len(down), high)):
            cells = self._matrix._block(down[some], across)
            summed = cells.new_zeros(*cells.shape[:3], len(columns)).index_add_(3, column_of, cells)
            total.index_add_(2, row_of[some], summed)
        return total / _lengths([self._rows[word] for word in rows.tolist()], total)

    def _matmul(self, values: Tensor) -> Tensor:
        rows, columns = self._word_of(self._rows), self._word_of(self._columns)
        found = self._matrix._matmul(values[:, :, columns])
        return _sum_by_word(found, rows, len(self._rows)) / _lengths(self._rows, found)

    def _transposed_matmul(self, values: Tensor) -> Tensor:
        rows, columns = self._word_of(self._rows), self._word_of(self._columns)
        found = self._matrix._transposed_matmul((values / _lengths(self._rows, values))[:, :, rows])
        return _sum_by_word(found, columns, len(self._columns))

    def _word_of(self, spans: list[tuple[int, int]]) -> Tensor:
        """The word of each token."""
        return bins_of_positions([0, *(stop for _, stop in spans)], self.device)


def _find_tokens(spans: list[tuple[int, int]], words: Positions) -> tuple[Positions, Tensor]:
    """The tokens of the given words, and the index of the word of each token."""
    found = [(token, at) for at, word in enumerate(words.tolist()) for token in range(*spans[word])]
    tokens, places = zip(*found, strict=True) if found else ((), ())
    return Positions(tokens, words.device), to_device(torch.tensor(places, dtype=torch.long), words.device)


def _sum_by_word(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(*values.shape[:2], count, values.shape[-1]).index_add_(2, index, values)


def _lengths(spans: list[tuple[int, int]], like: Tensor) -> Tensor:
    lengths = torch.tensor([stop - start for start, stop in spans], dtype=like.dtype)
    return to_device(lengths, like.device)[:, None]


def _check_spans(spans: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    spans = [(int(start), int(stop)) for start, stop in spans]
    stops = [0, *(stop for _, stop in spans)]
    if [start for start, _ in spans] != stops[:-1] or stops[-1] != length or any(a >= b for a, b in spans):
        raise ShapeError(f"merge_tokens: expected spans (start, stop) that cover 0 to {length} without gaps")
    return spans


def value_norms(value: Tensor, output_projection: Tensor | None, heads: int) -> Tensor:
    """The norm of the value of each key, or of value @ output_projection, (batch, heads, keys)."""
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    value = value.repeat_interleave(heads // value.shape[1], dim=1)
    if output_projection is None:
        return value.norm(dim=-1)
    if output_projection.dim() != 3 or tuple(output_projection.shape[:2]) != (heads, value.shape[-1]):
        expected = f"({heads}, {value.shape[-1]}, model dim)"
        raise ShapeError(f"value_weighted: expected output_projection {expected}, got {tuple(output_projection.shape)}")
    # |v W|^2 = v (W W^T) v needs (value dim)^2 numbers per head instead of keys x model dim.
    projection = output_projection.to(value)
    gram = projection @ projection.mT
    return ((value @ gram) * value).sum(-1).clamp(min=0.0).sqrt()
