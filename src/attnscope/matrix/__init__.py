"""`AttentionMatrix`: attention weights of any sequence length, computed on request."""

from attnscope.matrix.matrix import AttentionMatrix

__all__ = ["AttentionMatrix"]
