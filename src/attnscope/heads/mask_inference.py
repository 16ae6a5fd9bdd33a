"""Infers the mask of dense attention weights, in which a weight of 0 may be masked or not.

In: attention weights (batch, heads, queries, keys), as a model returned them. Out: the same weights as a matrix with a
mask. The mask is causal if no weight above the diagonal is positive, and full otherwise. Keys that receive no weight
from any query are padding. Anything else is unsupported.
Does not know: models. Memory: twice that of the weights.
"""

from __future__ import annotations

from torch import Tensor

from attnscope.attention import Bias, Causal, Full, Padding
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix


def with_inferred_mask(weights: Tensor) -> AttentionMatrix:
    """Return attention weights (batch, heads, queries, keys) as a matrix with their inferred mask."""
    queries, keys = weights.shape[-2:]
    used = weights.sum((1, 2)) > 0  # (batch, keys)
    ahead = (weights.triu(keys - queries + 1) > 0).any(-1).any(1)  # (batch, queries)
    ahead = ahead[:, :-1]  # no key is ahead of the last query
    if ahead.any() and not ahead.all(-1)[ahead.any(-1)].all():
        row = int((~ahead[ahead.any(-1)][0]).long().argmax())
        raise UnsupportedError(
            f"score_heads: some queries of these weights attend ahead, and query {row} does not. They may be rows of "
            "left padding, which eager attention fills with equal weights. Score each text alone, or record the model"
        )
    mask = (Full() if ahead.any() else Causal()) & Padding(keep=used)
    logits = weights.float().log() if weights.dtype.itemsize < 4 else weights.log()
    zeros = logits.new_zeros(*weights.shape[:3], 1), logits.new_zeros(*weights.shape[:2], keys, 1)
    return AttentionMatrix(*zeros, mask=mask, score_mod=Bias(logits), lse=logits.new_zeros(weights.shape[:3]))
