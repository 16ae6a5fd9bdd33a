"""Run a model over a long sequence in chunks.

In: a model and ids (batch, positions). Out: what the model returns for each chunk. Decoders of AttnScope and of
transformers read chunks with a KV cache between them; other models read the whole sequence at once.
Does not know: recording. Memory: the KV cache, and the activations of one chunk.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from attnscope.models import Decoder, Encoder, KVCache
from attnscope.recording.hooks.coverage import is_without_softmax


class Chunk(NamedTuple):
    """Tokens [start, stop) of a sequence, and what the model returned for them."""

    start: int
    stop: int
    result: Any


def run_in_chunks(model: nn.Module, ids: Tensor, chunk_size: int, *, logits: bool = False) -> Iterator[Chunk]:
    """Run a model over ids, chunk by chunk; `logits` computes those of all tokens, which take the most memory."""
    ids = ids.to(next((parameter.device for parameter in model.parameters()), ids.device))
    step = _step_of(model, logits=logits)
    for start in range(0, ids.shape[1], chunk_size if step else ids.shape[1]):
        some = ids[:, start : start + chunk_size] if step else ids
        yield Chunk(start, start + some.shape[1], (step or model)(some))


def _step_of(model: nn.Module, *, logits: bool) -> Callable[[Tensor], object] | None:
    """A function that runs the model on the next tokens; None for models without a KV cache."""
    if isinstance(model, Decoder):
        cache: KVCache = model.new_cache()
        return lambda ids: (model if logits else model.features)(ids, cache=cache)
    config = getattr(model, "config", None)
    if isinstance(model, Encoder) or getattr(config, "is_encoder_decoder", True) or not _can_generate(model):
        return None
    if any(map(is_without_softmax, model.modules())):  # many of these continue with single tokens only
        return None
    cached = sys.modules["transformers"].DynamicCache(config=config)
    options = {"past_key_values": cached, "use_cache": True}
    if not logits and "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = 1
    return lambda ids: model(input_ids=ids, **options)


def _can_generate(model: nn.Module) -> bool:
    return bool(getattr(model, "can_generate", lambda: False)())
