"""Computation beside the event loop: so many at once as there are cores, and only while somebody waits for it.

In: functions. Out: what they return. What still waits when its client has gone is never begun; what takes long runs in
a lane of its own, so that it keeps no tile waiting. Does not know: what is computed. Memory: what functions return.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from attnscope.explorer.service.guard import Receive

Answer = TypeVar("Answer")
MAX_KEPT = 512  # answers of what was done aside


class ClientDisconnected(Exception):  # noqa: N818 - nothing went wrong here
    """A client that does not wait any more."""


class WorkerPools:
    """Lanes of threads: `quick` for tiles and rows, `slow` for what takes seconds, `stage` for a model."""

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.quick, self.slow = _lane("quick", cores), _lane("slow", 1)
        self.stage = _lane("stage", 8)  # one has the model; the others wait for it and are soon refused
        self._aside = _lane("aside", 1)
        self._kept: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    async def done(self, lane: Executor, receive: Receive, work: Callable[[], Answer]) -> Answer:
        """Run a function in a pool; raises ClientDisconnected if the client disconnects first."""
        return await until_disconnect(receive, asyncio.wrap_future(lane.submit(work)))

    def aside(self, key: Hashable, work: Callable[[], Answer]) -> Future[Answer]:
        """Submit background work that the client polls for; it replaces other background work that has not started.

        What fails is told once, and tried again when it is asked for after that.
        """
        with self._lock:
            known = self._kept.get(key)
            if known is None or known.cancelled():
                for other in list(self._kept):
                    if self._kept[other].cancel():
                        del self._kept[other]
                known = self._kept[key] = self._aside.submit(work)
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            if known.done() and not known.cancelled() and known.exception() is not None:
                self._kept.pop(key, None)
            return known

    def close(self) -> None:
        """Begin nothing more, and wait for what has begun."""
        lanes = (self.quick, self.slow, self.stage, self._aside)
        for lane in lanes:
            lane.shutdown(wait=False, cancel_futures=True)
        for lane in lanes:
            lane.shutdown(wait=True)


async def until_disconnect(receive: Receive, making: Awaitable[Answer]) -> Answer:
    """What is being made; raises ClientDisconnected when its client goes first."""
    answer, gone = asyncio.ensure_future(making), asyncio.ensure_future(_goes(receive))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ClientDisconnected
    finally:
        for task in (gone, answer):
            task.cancel()  # which keeps work that has not begun from beginning


def _lane(name: str, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=f"attnscope-{name}")


async def _goes(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
