"""A layer of a trace that stores dense attention weights.

In: weights (batch, heads, queries, keys). Out: an AttentionMatrix of them. Memory: that of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attnscope.matrix import AttentionMatrix
from attnscope.recording.files.file_check import skip_check


class DenseLayer:
    """A layer name and its dense attention weights."""

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
        """The indices of the heads, which are all heads of the layer."""
        return tuple(range(self._weights.shape[1]))

    @property
    def nbytes(self) -> int:
        """The memory of the weights."""
        return self._weights.nbytes

    def tensors(self) -> Iterator[Tensor]:
        """The weights."""
        yield self._weights

    def to(self, device: torch.device) -> DenseLayer:
        """A copy of the layer on a device."""
        return DenseLayer(self.name, self.weights.to(device))

    def matrix(self) -> AttentionMatrix:
        """The weights as a matrix."""
        return AttentionMatrix.from_dense(self.weights)
