"""Ctrl-C and SIGTERM stop a run after the current step.

In: signals. Out: an event. Does not know: the loop. Memory: O(1).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that is set by Ctrl-C or SIGTERM; a second signal has its usual effect."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping  # Python delivers signals to the main thread only
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request_stop(number: int, _frame: object) -> None:
        stopping.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, request_stop)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
