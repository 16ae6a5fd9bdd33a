"""A matrix of weights that somebody has already built, answering the same questions as one that never is.

In: weights (batch, heads, queries, keys). Cells with weight 0 count as forbidden: a dense matrix does not say which
zeros are a mask's. Memory: that of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnscope.attention.algebra import Sizes
from attnscope.matrix.schedule import Schedule


class Held:
    """Weights in memory."""

    fused = False

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    @property
    def sizes(self) -> Sizes:
        """(batch, heads, queries, keys)."""
        batch, heads, queries, keys = self.weights.shape
        return Sizes(batch, heads, queries, keys)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all results: fp32 at least."""
        return torch.promote_types(self.weights.dtype, torch.float32)

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.weights.dtype

    @property
    def device(self) -> torch.device:
        """Where the results are."""
        return self.weights.device

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.weights.numel() * self.weights.element_size()

    @property
    def cells_a_row(self) -> float:
        """Cells in a row of all heads and batch rows."""
        return self.sizes.batch * self.sizes.heads * self.sizes.keys

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is held."""
        yield self.weights

    def to(self, device: torch.device, dtype: torch.dtype) -> Held:
        """The weights on a device and in a dtype."""
        return Held(self.weights.to(device, dtype))

    def narrow(self, batch: slice, heads: slice) -> Held:
        """Some batch rows and heads of it."""
        return Held(self.weights[batch, heads])

    def reach(self, rows: Tensor) -> tuple[int, int]:
        """Columns [first, last) that these rows may see: all."""
        return 0, self.sizes.keys

    @property
    def pair_bytes(self) -> int:
        """Bytes that one scattered cell takes on its way."""
        return self.dtype.itemsize

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """A block of weights."""
        return self.weights[:, :, rows[:, None], columns[None, :]].to(self.dtype)

    def log_weights(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The logarithms of a block of weights."""
        return self.block(rows, columns).log()

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The weights of cells (rows[p], columns[p]), (batch, heads, pairs)."""
        return self.weights[:, :, rows, columns].to(self.dtype)

    def products(self, values: Tensor, schedule: Schedule) -> Tensor:
        """Weights @ values."""
        steps = schedule.steps(self.sizes.queries, self.cells_a_row, int(self.cells_a_row) * self.dtype.itemsize)
        pieces = [self.weights[:, :, step.start : step.stop].to(self.dtype) @ values for step in schedule.follow(steps)]
        return torch.cat(pieces, 2)
