"""The operation: `attend`, its masks and scores, its three engines (reference, fused, streaming), and its relatives."""

from attnscope.attention.algebra import Mask
from attnscope.attention.masks import Causal, Documents, Full, Padding, Prefix, Window, from_bool
from attnscope.attention.operation import attend, explain
from attnscope.attention.scores import ALiBi, Bias, ScoreMod, Sinks, Softcap, Temperature

__all__ = [
    "ALiBi",
    "Bias",
    "Causal",
    "Documents",
    "Full",
    "Mask",
    "Padding",
    "Prefix",
    "ScoreMod",
    "Sinks",
    "Softcap",
    "Temperature",
    "Window",
    "attend",
    "explain",
    "from_bool",
]
