"""FLOP counts and times of calls. Claims about time rest on counts, and on ratios with wide intervals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

Name = TypeVar("Name")
MIN_ROUNDS = 4


def count_flops(call: Callable[[], object]) -> int:
    """Count the floating-point operations in the matrix products of a call; a multiply-add is two.

    Args:
        call: A function without arguments; it is called once.

    Returns:
        The number of operations.

    >>> count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    48
    """
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def best_times(calls: Mapping[Name, Callable[[], object]], *, seconds: float) -> dict[Name, float]:
    """Return the smallest CPU time of each call on one core.

    Args:
        calls: The calls to compare, by name. They alternate, so that a slow period affects all of them.
        seconds: How long to repeat all calls.

    Returns:
        Seconds by name.
    """
    best = dict.fromkeys(calls, math.inf)
    rounds, end = 0, time.perf_counter() + seconds
    with torch.no_grad(), one_thread():
        while rounds < MIN_ROUNDS or time.perf_counter() < end:
            for name, call in calls.items():
                start = time.thread_time()  # excludes other processes
                call()
                if rounds:  # the first round warms up
                    best[name] = min(best[name], time.thread_time() - start)
            rounds += 1
    return best


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch with one thread: small tensors gain little from more, and results do not depend on the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
