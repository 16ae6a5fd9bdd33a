"""The values of a picture: the cells of one head or bins of them, and which are masked.

In: an `AttentionMatrix`. Out: arrays on the CPU. Does not know: how they are drawn. Memory: that of the picture.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.pooling import REDUCTIONS


class Picture(NamedTuple):
    """Values of cells or bins (rows, columns) of a matrix (queries, keys), and which of them are fully masked."""

    values: np.ndarray
    masked: np.ndarray
    queries: int
    keys: int

    @property
    def exact(self) -> bool:
        """Whether each value is a single weight."""
        return self.values.shape == (self.queries, self.keys)

    @property
    def unmasked(self) -> np.ndarray:
        """The values that are not masked, in one dimension."""
        return self.values[~self.masked]


def make_picture(matrix: AttentionMatrix, bins: int, reduction: str) -> Picture:
    """Return the cells of a one-head matrix, or at most `bins` by `bins` bins of equal width.

    >>> import torch
    >>> matrix = AttentionMatrix(torch.zeros(600, 2), torch.zeros(300, 2))
    >>> picture = make_picture(matrix, 512, "density")
    >>> picture.values.shape, picture.exact
    ((300, 300), False)
    """
    if bins < 1:
        raise ValueError(f"expected bins of at least 1, got {bins}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"expected reduction to be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    queries, keys = matrix.shape
    if not queries or not keys:
        raise ShapeError(f"expected at least one query and one key to draw, got {queries} x {keys}")
    size = bin_count(queries, bins), bin_count(keys, bins)
    values = to_numpy(matrix[:] if size == (queries, keys) else matrix.pool(*size, reduction=reduction))
    masked = to_numpy(matrix.visible_cells(*size)) == 0
    if np.isnan(values[~masked]).any():
        raise ValueError("this matrix has NaN weights; check its queries and keys for NaN and infinity")
    return Picture(values, masked, queries, keys)


def bin_count(length: int, most: int) -> int:
    """Return how many bins of equal width cover a length, at most `most`.

    >>> bin_count(100, 512), bin_count(5000, 512)
    (100, 500)
    """
    width = -(-length // most)
    return -(-length // width)


def select_head(matrix: AttentionMatrix, name: str) -> AttentionMatrix:
    """Return the matrix (queries, keys) of the only head; `name` is the caller, for errors."""
    if not isinstance(matrix, AttentionMatrix):
        raise ShapeError(
            f"{name}: expected an AttentionMatrix, got {type(matrix).__name__}; convert dense weights with "
            "AttentionMatrix.from_dense(weights)"
        )
    leading = tuple(matrix.shape[:-2])
    if any(size != 1 for size in leading):
        how = {1: ".head(h)", 2: ".batch(b).head(h)"}[len(leading)]
        raise ShapeError(f"{name}: expected one head, got leading axes {leading}; select one with {how}")
    matrix = matrix.batch(0) if len(leading) == 2 else matrix
    return matrix.head(0) if leading else matrix


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a numpy array."""
    return tensor.detach().cpu().numpy()
