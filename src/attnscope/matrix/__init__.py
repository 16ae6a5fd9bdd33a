"""A matrix of attention weights that can be used and is never built."""

from attnscope.matrix.matrix import AttentionMatrix
from attnscope.matrix.rollout import rollout

__all__ = ["AttentionMatrix", "rollout"]
