"""What calls cost: operations counted, and times that are fit for ratios; and one thread for all that is small.

In: calls. Out: numbers. Claims about time are decided by what is counted, and by ratios in wide bands.
Does not know: what is called. Memory: that of the calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

Name = TypeVar("Name")
MIN_TURNS = 4


def counted_operations(call: Callable[[], object]) -> int:
    """Floating-point operations in the matrix products of a call; a multiply-add is two.

    >>> counted_operations(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    48
    """
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def best_times(calls: Mapping[Name, Callable[[], object]], *, seconds: float) -> dict[Name, float]:
    """The least work of each call on one core, in seconds; they take turns for a while, so a slow spell meets all."""
    best = dict.fromkeys(calls, math.inf)
    turns, end = 0, time.perf_counter() + seconds
    with torch.no_grad(), one_thread():
        while turns < MIN_TURNS or time.perf_counter() < end:
            for name, call in calls.items():
                start = time.thread_time()  # what other programs do meanwhile is not counted
                call()
                if turns:  # the first turn warms up
                    best[name] = min(best[name], time.thread_time() - start)
            turns += 1
    return best


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors as small as those of labs gain little from more threads, and on a busy machine they mostly wait for them;
    and with one thread the same numbers come out whatever the number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
