"""Keys and values of the tokens that a decoder has already read, so that it need not read them again.

In: the new keys and values of a layer, (batch, key heads, position, head dim). Out: all of them so far.
Does not know: models, masks, positions. Causal masks align bottom-right, so new queries need no offset.
Memory: O(n) a layer. A cache with a capacity takes it all at once and refuses more; one without grows by doubling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError

FIRST_CAPACITY = 64  # of a cache that grows


class LayerCache:
    """The keys and values of one layer.

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
        """Append new keys and values; all of them so far, as views of the cache."""
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise ShapeError("a cache carries no gradients: decode under torch.no_grad(), or train without a cache")
        length = self.length + key.shape[2]
        self._key = self._with_room(self._key, key, length)
        self._value = self._with_room(self._value, value, length)
        self._key[:, :, self.length : length] = key
        self._value[:, :, self.length : length] = value
        self.length = length
        return self._key[:, :, :length], self._value[:, :, :length]

    @property
    def nbytes(self) -> int:
        """Bytes that are held, room to grow included."""
        return sum(0 if tensor is None else tensor.nbytes for tensor in (self._key, self._value))

    def _with_room(self, storage: Tensor | None, new: Tensor, length: int) -> Tensor:
        if self.capacity is not None and length > self.capacity:
            raise ShapeError(
                f"the cache holds {self.capacity} positions, {self.length} of them taken, and {new.shape[2]} more "
                "were asked for; make it larger, or leave out the capacity and let it grow"
            )
        if storage is None:
            room = self.capacity or max(FIRST_CAPACITY, length)
        elif storage.shape[:2] != new.shape[:2] or storage.shape[3] != new.shape[3] or storage.dtype != new.dtype:
            raise ShapeError(
                f"the cache was begun with {tuple(storage.shape)} {storage.dtype} (batch, key heads, positions, dim), "
                f"but {tuple(new.shape)} {new.dtype} arrived; use a new cache for another batch or model"
            )
        elif length <= storage.shape[2]:
            return storage
        else:
            room = max(length, 2 * storage.shape[2])
        larger = new.new_empty(*new.shape[:2], room, new.shape[3])
        if storage is not None:
            larger[:, :, : self.length] = storage[:, :, : self.length]
        return larger


class Cache:
    """A LayerCache for each layer of a decoder.

    >>> Cache(layers=30).length
    0
    """

    def __init__(self, *, layers: int, capacity: int | None = None):
        self._layers = [LayerCache(capacity) for _ in range(layers)]

    def __getitem__(self, layer: int) -> LayerCache:
        return self._layers[layer]

    def __len__(self) -> int:
        """How many layers there are."""
        return len(self._layers)

    @property
    def length(self) -> int:
        """How many positions every layer holds."""
        lengths = {layer.length for layer in self._layers}
        if len(lengths) > 1:
            raise ShapeError(
                f"the layers of this cache hold {min(lengths)} to {max(lengths)} positions: a pass through the model "
                f"broke off half-way; go back with crop({min(lengths)})"
            )
        return lengths.pop() if lengths else 0

    @property
    def nbytes(self) -> int:
        """Bytes that are held, room to grow included."""
        return sum(layer.nbytes for layer in self._layers)

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on; matrices that were made with them change, since they hold views."""
        if length < 0:
            raise SettingError(f"a cache is cropped to a length of at least 0, but {length} was asked for")
        for layer in self._layers:
            layer.length = min(layer.length, length)
