"""The exceptions of AttnScope.

A message says what was expected, what was found and what to do. Every class also derives from the built-in exception
that a caller would expect, so `except ValueError` works. This module imports no other module of AttnScope.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class AttnScopeError(Exception):
    """The base class of all exceptions of AttnScope."""


class ShapeError(AttnScopeError, ValueError):
    """Tensors whose shapes, dtypes or devices do not fit together."""


class SettingError(AttnScopeError, ValueError):
    """An invalid argument or option."""


class UnsupportedError(AttnScopeError, NotImplementedError):
    """An operation, model or input that AttnScope does not support."""


class VersionError(UnsupportedError):
    """An installed package in an unsupported version."""


class Cancelled(AttnScopeError):  # noqa: N818 - not an error: the caller has cancelled
    """Work that the caller has cancelled."""


class MissingExtraError(AttnScopeError, ImportError):
    """An optional dependency that is not installed."""


class CheckpointError(AttnScopeError, ValueError):
    """Model files that are missing, damaged, malicious or unsupported."""


class UnsupportedModelError(CheckpointError):
    """A valid checkpoint of a model that AttnScope does not implement; transformers may."""


class TraceError(AttnScopeError, ValueError):
    """A saved trace that is missing, damaged, malicious or unsupported."""


class VocabularyError(AttnScopeError, ValueError):
    """Text or ids that a tokenizer cannot encode or decode."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name, with the closest known name, or all of them if none is close.

    >>> unknown("label", "inductoin", ["induction", "sink"]), unknown("size", "huge", ["small", "full"])
    ("unknown label 'inductoin' (did you mean 'induction'?)", "unknown size 'huge' (expected small or full)")
    """
    names = list(known)
    if close := get_close_matches(name, names, n=1):
        return f"unknown {kind} {name!r} (did you mean {close[0]!r}?)"
    return f"unknown {kind} {name!r} (expected {' or '.join(filter(None, [', '.join(names[:-1]), *names[-1:]]))})"
