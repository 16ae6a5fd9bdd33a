"""What Sightline raises at its users.

Each message says what was asked, what arrived and what to do. Every class also derives from the built-in exception a
caller would expect, so `except ValueError` keeps working. This module imports nothing.
"""


class SightlineError(Exception):
    """The root of everything Sightline raises on purpose."""


class ShapeError(SightlineError, ValueError):
    """Tensors whose shapes, dtypes or devices do not fit together."""


class SettingError(SightlineError, ValueError):
    """A setting outside of what it may be."""


class UnsupportedError(SightlineError, NotImplementedError):
    """A request that the chosen engine cannot answer exactly, and therefore refuses."""


class Cancelled(SightlineError):  # noqa: N818 - nothing went wrong: somebody asked for it
    """Work that was stopped because the caller asked for it."""


class MissingExtraError(SightlineError, ImportError):
    """An optional dependency that is needed now and is not installed."""


class CheckpointError(SightlineError, ValueError):
    """Files of a model that are missing, damaged, hostile or not understood."""


class TraceError(SightlineError, ValueError):
    """A saved trace that is missing, damaged, hostile or not understood."""


class VocabularyError(SightlineError, ValueError):
    """Text or ids that a tokenizer has no place for."""
