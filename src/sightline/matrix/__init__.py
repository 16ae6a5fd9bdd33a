"""A matrix of attention weights that can be used and is never built."""

from sightline.matrix.matrix import AttentionMatrix
from sightline.matrix.rollout import rollout

__all__ = ["AttentionMatrix", "rollout"]
