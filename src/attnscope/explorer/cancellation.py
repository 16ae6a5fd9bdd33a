"""The type of a cancellation check, which long computations call between steps."""

from __future__ import annotations

from collections.abc import Callable

CancelCheck = Callable[[], bool]
"""Returns True once the result is no longer needed. It may be called often, and from any thread."""


def never_cancelled() -> bool:
    """Return False: the check of a computation that nobody cancels."""
    return False
