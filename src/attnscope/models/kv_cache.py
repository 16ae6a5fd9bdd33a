"""KV cache: keys and values of past tokens, for decoding.

In: the new keys and values of a layer, (batch, num_kv_heads, sequence, head_dim). Out: all of them so far.
Does not know: models, masks, positions. Causal masks align bottom-right, so new queries need no offset.
Memory: O(n) per layer. With a capacity, a cache is allocated at once and raises when full; without, it doubles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError

INITIAL_CAPACITY = 64  # of a cache that grows


class LayerCache:
    """The keys and values of one layer.

    Args:
        capacity: Number of tokens to allocate at once, and the most it holds; None for a cache that grows.

    >>> cache = LayerCache()
    >>> keys, values = cache.extend(torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8))
    >>> keys, values = cache.extend(torch.ones(1, 2, 1, 8), torch.ones(1, 2, 1, 8))
    >>> keys.shape, cache.length
    (torch.Size([1, 2, 6, 8]), 6)
    """

    def __init__(self, capacity: int | None = None):
        self.capacity = capacity
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (batch, num_kv_heads, sequence, head_dim).

        Returns:
            All keys and values so far, as views of the cache.

        Raises:
            ShapeError: If the cache is full, has another batch size or dtype, or gradients are needed.
        """
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise ShapeError(
                "a KV cache does not support gradients; decode under torch.no_grad(), or train without a cache"
            )
        length = self.length + key.shape[2]
        self._key = self._allocate(self._key, key, length)
        self._value = self._allocate(self._value, value, length)
        self._key[:, :, self.length : length] = key
        self._value[:, :, self.length : length] = value
        self.length = length
        return self._key[:, :, :length], self._value[:, :, :length]

    @property
    def nbytes(self) -> int:
        """Allocated bytes, spare capacity included."""
        return sum(0 if tensor is None else tensor.nbytes for tensor in (self._key, self._value))

    def _allocate(self, storage: Tensor | None, new: Tensor, length: int) -> Tensor:
        if self.capacity is not None and length > self.capacity:
            raise ShapeError(
                f"KV cache is full: capacity {self.capacity}, length {self.length}, got {new.shape[2]} more tokens; "
                "use a larger capacity, or capacity=None for a cache that grows"
            )
        if storage is None:
            room = self.capacity or max(INITIAL_CAPACITY, length)
        elif storage.shape[:2] != new.shape[:2] or storage.shape[3] != new.shape[3] or storage.dtype != new.dtype:
            raise ShapeError(
                f"KV cache holds {tuple(storage.shape)} {storage.dtype} (batch, num_kv_heads, capacity, head_dim), "
                f"got {tuple(new.shape)} {new.dtype}; use a new cache for another batch or model"
            )
        elif length <= storage.shape[2]:
            return storage
        else:
            room = max(length, 2 * storage.shape[2])
        larger = new.new_empty(*new.shape[:2], room, new.shape[3])
        if storage is not None:
            larger[:, :, : self.length] = storage[:, :, : self.length]
        return larger


class KVCache:
    """The KV cache of a decoder: a LayerCache per layer.

    Args:
        num_layers: Number of layers.
        capacity: Number of tokens to allocate at once, and the most it holds; None for a cache that grows.

    >>> KVCache(num_layers=30).length
    0
    """

    def __init__(self, *, num_layers: int, capacity: int | None = None):
        self._layers = [LayerCache(capacity) for _ in range(num_layers)]

    def __getitem__(self, layer: int) -> LayerCache:
        return self._layers[layer]

    def __len__(self) -> int:
        """Number of layers."""
        return len(self._layers)

    @property
    def length(self) -> int:
        """Number of tokens in every layer."""
        lengths = {layer.length for layer in self._layers}
        if len(lengths) > 1:
            raise ShapeError(
                f"the layers of this KV cache hold {min(lengths)} to {max(lengths)} tokens, because a forward pass was "
                f"interrupted; restore it with crop({min(lengths)})"
            )
        return lengths.pop() if lengths else 0

    @property
    def nbytes(self) -> int:
        """Allocated bytes, spare capacity included."""
        return sum(layer.nbytes for layer in self._layers)

    def crop(self, length: int) -> None:
        """Drop all tokens from `length` on.

        Attention matrices that were made with this cache hold views of it, so later tokens overwrite theirs.

        Args:
            length: The number of tokens to keep.

        Raises:
            SettingError: If the length is negative.
        """
        if length < 0:
            raise SettingError(f"crop: length must be at least 0, got {length}")
        for layer in self._layers:
            layer.length = min(layer.length, length)
