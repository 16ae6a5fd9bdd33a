"""Retries what failed for want of access: a disk, a network or a mounted folder may be back in seconds.

In: an action. Out: its result, or the error of its last attempt. Does not know: what the action does. Memory: none of
its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

RETRY_DELAYS = (1.0, 10.0)
"""Seconds before each retry."""

Result = TypeVar("Result")


def retry_access(
    action: Callable[[], Result], error: type[OSError] = OSError, delays: Sequence[float] | None = None
) -> Result:
    """Call an action, and again after each of some delays while it raises an error of a kind.

    Args:
        action: Called without arguments.
        error: Other errors are raised at once.
        delays: Seconds before each retry; `RETRY_DELAYS` if None.
    """
    for delay in RETRY_DELAYS if delays is None else delays:
        try:
            return action()
        except error:
            time.sleep(delay)
    return action()
