"""What AttnScope raises at its users.

Each message says what was asked, what arrived and what to do. Every class also derives from the built-in exception a
caller would expect, so `except ValueError` keeps working. This module imports nothing.
"""


class AttnScopeError(Exception):
    """The root of everything AttnScope raises on purpose."""


class ShapeError(AttnScopeError, ValueError):
    """Tensors whose shapes, dtypes or devices do not fit together."""


class SettingError(AttnScopeError, ValueError):
    """A setting outside of what it may be."""


class UnsupportedError(AttnScopeError, NotImplementedError):
    """A request that the chosen engine cannot answer exactly, and therefore refuses."""


class Cancelled(AttnScopeError):  # noqa: N818 - nothing went wrong: somebody asked for it
    """Work that was stopped because the caller asked for it."""


class MissingExtraError(AttnScopeError, ImportError):
    """An optional dependency that is needed now and is not installed."""


class CheckpointError(AttnScopeError, ValueError):
    """Files of a model that are missing, damaged, hostile or not understood."""


class TraceError(AttnScopeError, ValueError):
    """A saved trace that is missing, damaged, hostile or not understood."""


class VocabularyError(AttnScopeError, ValueError):
    """Text or ids that a tokenizer has no place for."""
