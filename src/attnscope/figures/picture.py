"""The numbers of a picture: the cells of one head, or bins of them, and which of them the mask hides.

In: an `AttentionMatrix`. Out: arrays on the CPU. No drawing here. Memory: that of the picture, whatever the matrix has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.pooling import REDUCTIONS


class Picture(NamedTuple):
    """Values (rows, columns) of cells or bins, `hidden` where the mask allows none, of a matrix queries x keys."""

    values: np.ndarray
    hidden: np.ndarray
    queries: int
    keys: int

    @property
    def exact(self) -> bool:
        """Whether each value is one weight."""
        return self.values.shape == (self.queries, self.keys)

    @property
    def seen(self) -> np.ndarray:
        """The values that are not hidden, in one row."""
        return self.values[~self.hidden]


def take_picture(matrix: AttentionMatrix, bins: int, how: str) -> Picture:
    """The picture of a one-head matrix: its cells, or at most `bins` by `bins` bins of one width.

    >>> import torch
    >>> matrix = AttentionMatrix(torch.zeros(600, 2), torch.zeros(300, 2))
    >>> picture = take_picture(matrix, 512, "density")
    >>> picture.values.shape, picture.exact
    ((300, 300), False)
    """
    if bins < 1:
        raise ValueError(f"bins={bins}: a picture has at least 1 bin each way; leave bins away for the default")
    if how not in REDUCTIONS:
        raise ValueError(f"how={how!r}: a bin is drawn as one of {', '.join(REDUCTIONS)}")
    queries, keys = matrix.shape
    if not queries or not keys:
        raise ShapeError(f"there is nothing to draw in a matrix of {queries} x {keys} cells")
    size = bin_count(queries, bins), bin_count(keys, bins)
    values = array(matrix[:] if size == (queries, keys) else matrix.pool(*size, reduction=how))
    hidden = array(matrix.visible_cells(*size)) == 0
    if np.isnan(values[~hidden]).any():
        raise ValueError("this matrix has weights that are NaN: look for NaN and infinity in its query and key")
    return Picture(values, hidden, queries, keys)


def bin_count(length: int, most: int) -> int:
    """How many bins of one width cover a length, at most so many.

    >>> bin_count(100, 512), bin_count(5000, 512)
    (100, 500)
    """
    width = -(-length // most)
    return -(-length // width)


def one_head(matrix: AttentionMatrix, name: str) -> AttentionMatrix:
    """The matrix (queries, keys) of the only head, or a refusal that says how to choose one; `name` is who asks."""
    if not isinstance(matrix, AttentionMatrix):
        raise ShapeError(
            f"{name}: draws an AttentionMatrix, got {type(matrix).__name__}; "
            "what has dense weights can be drawn as AttentionMatrix.from_dense(weights)"
        )
    leading = tuple(matrix.shape[:-2])
    if any(size != 1 for size in leading):
        how = {1: ".head(h)", 2: ".batch(b).head(h)"}[len(leading)]
        raise ShapeError(f"{name}: draws one head, got leading axes {leading}; choose one with {how}")
    matrix = matrix.batch(0) if len(leading) == 2 else matrix
    return matrix.head(0) if leading else matrix


def array(tensor: Tensor) -> np.ndarray:
    """A tensor as numpy has it."""
    return tensor.detach().cpu().numpy()
