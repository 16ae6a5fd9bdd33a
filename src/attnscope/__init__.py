"""Attention you can see, at any length."""

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
    from attnscope.explore import explore, look
    from attnscope.heads import ablate, patch, score_heads
    from attnscope.matrix import AttentionMatrix, rollout
    from attnscope.record import Trace, open, record  # noqa: A004 - as attnscope.open

_HOMES = {
    "attnscope.attention": "ALiBi Bias Causal Documents Full Padding Prefix Sinks Softcap Window attend from_bool",
    "attnscope.explore": "explore look",
    "attnscope.heads": "ablate patch score_heads",
    "attnscope.matrix": "AttentionMatrix rollout",
    "attnscope.record": "Trace open record",
}

__all__ = [
    "ALiBi", "AttentionMatrix", "Bias", "Causal", "Documents", "Full", "Padding", "Prefix", "Sinks", "Softcap",
    "Trace", "Window", "ablate", "attend", "explore", "from_bool", "look", "open", "patch", "record", "rollout",
    "score_heads",
]  # fmt: skip


if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names.split():
                module = import_module(home)
                return module if home == f"attnscope.{name}" else getattr(module, name)  # a package may be a function
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}")
