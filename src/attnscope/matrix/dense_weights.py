"""Attention weights that exist as a dense tensor, with the interface of `LazyWeights`.

In: weights (batch, heads, queries, keys). Cells of weight 0 count as masked, because a dense matrix does not say which
zeros come from a mask.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnscope.attention.algebra import Sizes
from attnscope.matrix.positions import Positions
from attnscope.matrix.schedule import Schedule


class DenseWeights:
    """Weights in memory, (batch, heads, queries, keys)."""

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
        """The device of all results."""
        return self.weights.device

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.weights.numel() * self.weights.element_size()

    @property
    def cells_per_row(self) -> float:
        """Cells per row, all heads and batch rows together."""
        return self.sizes.batch * self.sizes.heads * self.sizes.keys

    def tensors(self) -> Iterator[Tensor]:
        """Every stored tensor."""
        yield self.weights

    def to(self, device: torch.device, dtype: torch.dtype) -> DenseWeights:
        """The weights on a device and in a dtype."""
        return DenseWeights(self.weights.to(device, dtype))

    def narrow(self, batch: slice, heads: slice) -> DenseWeights:
        """The weights of some batch rows and heads."""
        return DenseWeights(self.weights[batch, heads])

    @property
    def bytes_per_pair(self) -> int:
        """Temporary bytes per cell of `pairs`."""
        return self.dtype.itemsize

    def block(self, rows: Positions, columns: Positions) -> Tensor:
        """A block of weights."""
        return self.weights[:, :, rows.tensor[:, None], columns.tensor[None, :]].to(self.dtype)

    def log_weights(self, rows: Positions, columns: Positions) -> Tensor:
        """The logarithms of a block of weights."""
        return self.block(rows, columns).log()

    def pairs(self, rows: Positions, columns: Positions) -> Tensor:
        """The weights of cells (rows[p], columns[p]), (batch, heads, pairs)."""
        return self.weights[:, :, rows.tensor, columns.tensor].to(self.dtype)

    def products(self, values: Tensor, schedule: Schedule) -> Tensor:
        """Weights @ values."""
        cells = self.cells_per_row
        steps = schedule.steps(self.sizes.queries, cells, int(cells) * self.dtype.itemsize, self.device)
        pieces = [self.weights[:, :, step.start : step.stop].to(self.dtype) @ values for step in schedule.track(steps)]
        return torch.cat(pieces, 2)
