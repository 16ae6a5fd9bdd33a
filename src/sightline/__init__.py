"""Attention you can see, at any length."""

from importlib import import_module
from typing import TYPE_CHECKING

from sightline.version import __version__ as __version__

if TYPE_CHECKING:
    from sightline.attention import (
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
    from sightline.explore import explore, look
    from sightline.heads import ablate, patch, score_heads
    from sightline.matrix import AttentionMatrix, rollout
    from sightline.record import Trace, open, record  # noqa: A004 - as sightline.open

_HOMES = {
    "sightline.attention": "ALiBi Bias Causal Documents Full Padding Prefix Sinks Softcap Window attend from_bool",
    "sightline.explore": "explore look",
    "sightline.heads": "ablate patch score_heads",
    "sightline.matrix": "AttentionMatrix rollout",
    "sightline.record": "Trace open record",
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
                return module if home == f"sightline.{name}" else getattr(module, name)  # a package may be a function
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
