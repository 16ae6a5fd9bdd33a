"""A text through a model, in as many passes as the model allows.

In: a model and ids (batch, position). Out: what the model returns for each piece. Decoders of AttnScope and of
transformers read in pieces, with a cache between them; other models read all at once.
Does not know: recording. Memory: the cache, and what one piece takes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from attnscope.models import Cache, Decoder, Encoder
from attnscope.recording.watch.coverage import is_without_softmax


class Piece(NamedTuple):
    """Tokens [start, stop) of a text, and what the model made of them."""

    start: int
    stop: int
    result: Any


def passes(model: nn.Module, ids: Tensor, piece: int, *, logits: bool = False) -> Iterator[Piece]:
    """Run a model over ids, piece by piece; `logits` asks for those of all tokens, which take the most memory."""
    ids = ids.to(next((parameter.device for parameter in model.parameters()), ids.device))
    step = _step_of(model, logits=logits)
    for start in range(0, ids.shape[1], piece if step else ids.shape[1]):
        some = ids[:, start : start + piece] if step else ids
        yield Piece(start, start + some.shape[1], (step or model)(some))


def _step_of(model: nn.Module, *, logits: bool) -> Callable[[Tensor], object] | None:
    """What reads the next tokens of a text; None for models that must have all of it at once."""
    if isinstance(model, Decoder):
        cache: Cache = model.new_cache()
        return lambda ids: (model if logits else model.features)(ids, cache=cache)
    config = getattr(model, "config", None)
    if isinstance(model, Encoder) or getattr(config, "is_encoder_decoder", True) or not _can_generate(model):
        return None
    if any(map(is_without_softmax, model.modules())):  # many of these go on with one token at a time only
        return None
    cached = sys.modules["transformers"].DynamicCache(config=config)
    options = {"past_key_values": cached, "use_cache": True}
    if not logits and "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = 1
    return lambda ids: model(input_ids=ids, **options)


def _can_generate(model: nn.Module) -> bool:
    return bool(getattr(model, "can_generate", lambda: False)())
