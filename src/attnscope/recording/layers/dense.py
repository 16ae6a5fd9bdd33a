"""Dense weights that already exist, as a layer of a trace.

In: weights (batch, heads, queries, keys). Out: an AttentionMatrix that holds them. Memory: that of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attnscope.matrix import AttentionMatrix
from attnscope.recording.files.file_check import skip_check


class DenseLayer:
    """A name and its dense weights."""

    cross = False
    check_file: Callable[[], None] = staticmethod(skip_check)
    """Called before the weights are used."""

    def __init__(self, name: str, weights: Tensor) -> None:
        self.name, self._weights = name, weights.detach()

    @property
    def weights(self) -> Tensor:
        """The weights (batch, heads, queries, keys)."""
        self.check_file()
        return self._weights

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads, queries, keys = self._weights.shape
        return batch, heads, queries, keys

    @property
    def heads(self) -> tuple[int, ...]:
        """The numbers of the heads: there are no others."""
        return tuple(range(self._weights.shape[1]))

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._weights.nbytes

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is held."""
        yield self._weights

    def to(self, device: torch.device) -> DenseLayer:
        """The layer with its weights on a device."""
        return DenseLayer(self.name, self.weights.to(device))

    def matrix(self) -> AttentionMatrix:
        """The weights as a matrix."""
        return AttentionMatrix.from_dense(self.weights)
