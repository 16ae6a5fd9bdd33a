"""Comparable times: calls alternate in one run, and the best of many counts.

On a shared machine a single time says little. The best of several alternating runs gives ratios that repeat, because a
slow period affects all calls alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def race(
    calls: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the best time of each call in seconds, after one warm-up call of each.

    Args:
        calls: The calls to compare, by name.
        rounds: How often each call is timed.
        clock: `time.process_time` counts the CPU time of all threads of this process instead of wall time.

    >>> best = race({"short": lambda: sum(range(10)), "long": lambda: sum(range(100_000))}, rounds=3)
    >>> best["short"] < best["long"]
    True
    """
    best = dict.fromkeys(calls, float("inf"))
    for repetition in range(rounds + 1):
        for name, call in calls.items():
            start = clock()
            call()
            spent = clock() - start
            if repetition:
                best[name] = min(best[name], spent)
    return best


def seconds(call: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
