"""Inspect attention in PyTorch transformers at any sequence length."""

from importlib import import_module
from typing import TYPE_CHECKING

from attnscope.version import __version__ as __version__

if TYPE_CHECKING:
    from attnscope.attention import (
        ALiBi,
        Bias,
        Causal,
        Documents,
        Full,
        Padding,
        Prefix,
        Sinks,
        Softcap,
        Window,
        attend,
        from_bool,
    )
    from attnscope.explorer import explore, look
    from attnscope.heads import ablate, find_heads, patch, rollout, score_heads
    from attnscope.matrix import AttentionMatrix
    from attnscope.recording import Trace, load, open_trace, read, record
    from attnscope.telemetry import WatchCallback, watch

_HOMES = {
    "attnscope.attention": "ALiBi Bias Causal Documents Full Padding Prefix Sinks Softcap Window attend from_bool",
    "attnscope.explorer": "explore look",
    "attnscope.heads": "ablate find_heads patch rollout score_heads",
    "attnscope.matrix": "AttentionMatrix",
    "attnscope.recording": "Trace load open_trace read record",
    "attnscope.telemetry": "WatchCallback watch",
}

__all__ = [
    "ALiBi", "AttentionMatrix", "Bias", "Causal", "Documents", "Full", "Padding", "Prefix", "Sinks", "Softcap",
    "Trace", "WatchCallback", "Window", "ablate", "attend", "explore", "find_heads", "from_bool", "load", "look",
    "open_trace", "patch", "read", "record", "rollout", "score_heads", "watch",
]  # fmt: skip


if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names.split():
                return globals().setdefault(name, getattr(import_module(home), name))
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
