"""The scores that the kernels compute: scale, softcap, ALiBi slopes and sinks, in the order of most models."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from attnscope.attention.scores import ALiBi, Softcap, Temperature
from attnscope.attention.spec import AttentionSpec


class ScoreTerms(NamedTuple):
    """The score of a query and a key: scale * q.k, or cap * tanh(scale * q.k), minus slope * distance."""

    scale: float
    cap: float | None = None  #: the largest absolute score; None without a softcap
    slopes: Tensor | None = None  #: ALiBi slopes, (heads,)
    slope_offset: int = 0  #: the position of the first query, for the distances of the slopes
    sinks: Tensor | None = None  #: one more logit in the denominator, (heads,)


def to_score_terms(spec: AttentionSpec) -> ScoreTerms | None:
    """Return the scores of a spec; None if the kernels do not support them."""
    scale, cap, slopes, slope_offset = spec.scale, None, None, 0
    for step in spec.steps:
        if isinstance(step, Softcap) and cap is None and slopes is None:
            scale, cap = scale / step.cap, step.cap
        elif isinstance(step, Temperature):
            scale, cap = (scale / step.value, None) if cap is None else (scale, cap / step.value)
            slopes = None if slopes is None else slopes / step.value
        elif isinstance(step, ALiBi) and slopes is None:
            slopes = step.slopes.float()  # divided by a temperature below
            slope_offset = spec.sizes.keys - spec.sizes.queries if step.offset is None else step.offset
        else:
            return None
    return ScoreTerms(scale, cap, slopes, slope_offset, None if spec.sinks is None else spec.sinks.logits)
