"""Which cells of weights that somebody has built could have been seen: a weight of 0 does not say.

In: weights (batch, heads, queries, keys), as a model returned them. Out: the same weights as a matrix with a mask: each
query sees the keys up to its own if nothing lies above the diagonal, and all keys otherwise. Keys that receive nothing
from anybody are padding. What looks like neither is refused.
Does not know: models. Memory: that of the weights, twice.
"""

from __future__ import annotations

from torch import Tensor

from attnscope.attention import Bias, Causal, Full, Padding
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix


def with_mask(weights: Tensor) -> AttentionMatrix:
    """Weights (batch, heads, queries, keys) as a matrix that knows what could have been seen."""
    queries, keys = weights.shape[-2:]
    used = weights.sum((1, 2)) > 0  # (batch, keys)
    ahead = (weights.triu(keys - queries + 1) > 0).any(-1).any(1)  # (batch, queries)
    could = ahead[:, :-1]  # the last query has nothing ahead of it
    if could.any() and not could.all(-1)[could.any(-1)].all():
        row = int((~could[could.any(-1)][0]).long().argmax())
        raise UnsupportedError(
            f"score_heads: of these weights, some queries look ahead, and query {row} does not: they may be rows of "
            "padding on the left, which eager code fills with equal weights. Give each text alone, or record the model"
        )
    mask = (Full() if could.any() else Causal()) & Padding(keep=used)
    logarithms = weights.float().log() if weights.dtype.itemsize < 4 else weights.log()
    nothing = logarithms.new_zeros(*weights.shape[:3], 1), logarithms.new_zeros(*weights.shape[:2], keys, 1)
    return AttentionMatrix(*nothing, mask=mask, score_mod=Bias(logarithms), lse=logarithms.new_zeros(weights.shape[:3]))
