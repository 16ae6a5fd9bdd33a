"""`is_model_of`: whether a trace was recorded from a model with these parameters, checked on its first tokens.

In: a model, and a trace with token ids. Out: a boolean. Does not know: sessions. Memory: the first layer of 8 tokens.
"""

from __future__ import annotations

from torch import Tensor, nn

from attnscope.recording import Trace, read
from attnscope.recording.layers.recorded import Layer

VERIFY_TOKENS = 8  # tokens to run again, to verify that a trace is of this model
VERIFY_TOLERANCE = 0.05  # relative error of queries: allows for dtypes, not for other parameters


def is_model_of(model: nn.Module, trace: Trace, ids: Tensor) -> bool:
    """Whether the model computes the queries of the first layer of a trace from its token ids, (1, tokens)."""
    name, known = next(iter(trace.layers.items()))
    if not isinstance(known, Layer):
        return False
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    module = name.partition("#")[0]
    if module not in dict(model.named_modules()) or (size is not None and int(ids.max()) >= size):
        return False
    again = read(model, ids[:, :VERIFY_TOKENS], layers=[module], progress=False).layer(name)
    if not isinstance(again, Layer) or max(known.heads) >= again.shape[1]:
        return False
    found, wanted = (
        again.merge_calls().query[:, list(known.heads)].cpu().double(),
        known.merge_calls().query[:1, :, :VERIFY_TOKENS].cpu().double(),
    )
    if found.shape != wanted.shape:
        return False
    return bool((found - wanted).norm() <= VERIFY_TOLERANCE * wanted.norm())
