"""Run a model over a long sequence in chunks.

In: a model and ids (batch, positions). Out: what the model returns for each chunk. Decoders of AttnScope and of
transformers read chunks with a KV cache between them; other models read the whole sequence at once.
Does not know: recording. Memory: the KV cache, and the activations of one chunk.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

from torch import Tensor, nn

from attnscope.models import Decoder, Encoder, KVCache
from attnscope.recording.hooks.coverage import is_without_softmax


class Chunk(NamedTuple):
    """Tokens [start, stop) of a sequence, and what the model returned for them."""

    start: int
    stop: int
    result: Any


class CachedRun:
    """A decoder and its KV cache: each call reads the next tokens."""

    def __init__(self, model: nn.Module, cache: Any) -> None:
        self._model, self._cache = model, cache

    def __call__(self, ids: Tensor, *, logits: bool) -> Any:
        """Read the next ids (batch, positions); `logits` computes those of all tokens, which take the most memory."""
        if isinstance(self._model, Decoder):
            return (self._model if logits else self._model.features)(ids, cache=self._cache)
        options = {"past_key_values": self._cache, "use_cache": True}
        if not logits and "logits_to_keep" in inspect.signature(self._model.forward).parameters:
            options["logits_to_keep"] = 1
        return self._model(input_ids=ids, **options)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Drop what is read inside the with block from the KV cache at its end."""
        original = self._cache
        if isinstance(original, KVCache):
            length = original.length
        else:  # a sliding-window cache of transformers cannot be cropped
            length, self._cache = 0, deepcopy(original)
        try:
            yield
        finally:
            self._cache = original
            if isinstance(original, KVCache):
                original.crop(length)


def cached_run(model: nn.Module, *, capacity: int | None = None) -> CachedRun | None:
    """A model with an empty KV cache; None for models without one, which read the whole sequence at once.

    `capacity` is the number of tokens that the cache of AttnScope's own decoders is allocated for; None lets it grow.
    """
    if isinstance(model, Decoder):
        return CachedRun(model, model.new_cache(capacity))
    config = getattr(model, "config", None)
    if isinstance(model, Encoder) or getattr(config, "is_encoder_decoder", True) or not _can_generate(model):
        return None
    if any(map(is_without_softmax, model.modules())):  # many of these continue with single tokens only
        return None
    return CachedRun(model, sys.modules["transformers"].DynamicCache(config=config))


def run_in_chunks(model: nn.Module, ids: Tensor, chunk_size: int, *, logits: bool = False) -> Iterator[Chunk]:
    """Run a model over ids, chunk by chunk; `logits` computes those of all tokens."""
    ids = ids.to(next((parameter.device for parameter in model.parameters()), ids.device))
    run = cached_run(model)
    for start in range(0, ids.shape[1], chunk_size if run else ids.shape[1]):
        some = ids[:, start : start + chunk_size] if run else ids
        yield Chunk(start, start + some.shape[1], run(some, logits=logits) if run else model(some))


def _can_generate(model: nn.Module) -> bool:
    return bool(getattr(model, "can_generate", lambda: False)())
