"""Times that can be compared: calls take turns in one run, and the best of many counts.

On a shared machine a single time says little; the best of several, taken in turns so that a slow spell meets everyone,
gives ratios that repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def race(
    contestants: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The best time of each contestant in seconds, after one call of each that does not count.

    `clock` may be time.process_time, to count what all threads of this process have worked.

    >>> best = race({"short": lambda: sum(range(10)), "long": lambda: sum(range(100_000))}, rounds=3)
    >>> best["short"] < best["long"]
    True
    """
    best = dict.fromkeys(contestants, float("inf"))
    for turn in range(rounds + 1):
        for name, call in contestants.items():
            start = clock()
            call()
            spent = clock() - start
            if turn:
                best[name] = min(best[name], spent)
    return best


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
