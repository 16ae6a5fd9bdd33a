"""What AttnScope raises at its users.

Each message says what was asked, what arrived and what to do. Every class also derives from the built-in exception a
caller would expect, so `except ValueError` keeps working. This module imports nothing of ours.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class AttnScopeError(Exception):
    """The root of everything AttnScope raises on purpose."""


class ShapeError(AttnScopeError, ValueError):
    """Tensors whose shapes, dtypes or devices do not fit together."""


class SettingError(AttnScopeError, ValueError):
    """A setting outside of what it may be."""


class UnsupportedError(AttnScopeError, NotImplementedError):
    """A request that the chosen backend does not support."""


class VersionError(UnsupportedError):
    """An installed package in a version that lacks something AttnScope reads of it."""


class Cancelled(AttnScopeError):  # noqa: N818 - nothing went wrong: somebody asked for it
    """Work that was stopped because the caller asked for it."""


class MissingExtraError(AttnScopeError, ImportError):
    """An optional dependency that is needed now and is not installed."""


class CheckpointError(AttnScopeError, ValueError):
    """Files of a model that are missing, damaged, hostile or not understood."""


class UnsupportedModelError(CheckpointError):
    """A checkpoint that AttnScope's own models do not implement, and transformers may: no file of it is at fault."""


class TraceError(AttnScopeError, ValueError):
    """A saved trace that is missing, damaged, hostile or not understood."""


class VocabularyError(AttnScopeError, ValueError):
    """Text or ids that a tokenizer has no place for."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The words for a name that is not known: the closest one, or all of them where none is close.

    >>> unknown("label", "inductoin", ["induction", "sink"]), unknown("size", "huge", ["small", "full"])
    ("unknown label 'inductoin' (did you mean 'induction'?)", "unknown size 'huge' (expected small or full)")
    """
    names = list(known)
    if close := get_close_matches(name, names, n=1):
        return f"unknown {kind} {name!r} (did you mean {close[0]!r}?)"
    return f"unknown {kind} {name!r} (expected {' or '.join(filter(None, [', '.join(names[:-1]), *names[-1:]]))})"
