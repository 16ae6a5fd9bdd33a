"""`attend`, its masks and score modifiers, and its three backends: reference, fused and streaming."""

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
