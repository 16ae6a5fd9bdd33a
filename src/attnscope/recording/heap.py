"""Memory that was freed goes back to the system.

A pass through a model takes and frees the same large blocks for each layer. What a recording keeps in between, be it a
few bytes, cuts into them, so that the next layer's blocks no longer fit, and glibc keeps the old ones: some fifty
megabytes a layer for a model of a hundred million weights and 8,192 tokens. Where there is no glibc, nothing happens.
"""

from __future__ import annotations

import ctypes
from functools import cache

LARGE = 2**20  # bytes of a call that leaves such blocks behind
EVERY = 2  # calls: giving back costs a little time, as the next layer asks for the memory again


class Heap:
    """Counts large calls, and gives freed memory back after some of them."""

    def __init__(self) -> None:
        self._calls = 0

    def after(self, num_bytes: int) -> None:
        """Note that a call of so many bytes was kept."""
        if num_bytes < LARGE:
            return
        self._calls += 1
        if self._calls % EVERY == 0 and (trim := _malloc_trim()) is not None:
            trim(0)


@cache
def _malloc_trim():
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
