"""Thread pools for computation outside the event loop.

In: functions. Out: what they return. Work whose client disconnects before it starts is cancelled; slow work has its own
pool, so that it does not delay tiles. Does not know: what is computed. Memory: the results of background work.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from attnscope.atlas.background import NICENESS, lower_priority
from attnscope.errors import Cancelled
from attnscope.explorer.service.guard import Receive

Result = TypeVar("Result")
MAX_RESULTS = 512  # of background work


class ClientDisconnected(Exception):  # noqa: N818 - not an error of the server
    """The client disconnected before the response was ready."""


class WorkerPool(ThreadPoolExecutor):
    """A thread pool in which work that comes after its end is Cancelled, not an error."""

    _is_closed = False

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Start a function; raises Cancelled if the pool is shut down."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            if not self._is_closed:
                raise
            raise Cancelled("the explorer is closing") from error

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work."""
        self._is_closed = True
        super().shutdown(wait, cancel_futures=cancel_futures)


class WorkerPools:
    """Thread pools: `quick` for tiles and rows, `slow` for work of seconds, `model` for requests to the model.

    `search` is for questions about all heads, one at a time, so that they wait neither for thumbnails nor delay tiles.
    """

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.quick, self.slow = _make_pool("quick", cores), _make_pool("slow", 1, NICENESS)
        self.search = _make_pool("search", 1)
        self.model = _make_pool("model", 8)  # one runs the model; the others wait in its queue
        self._background = _make_pool("background", 1, NICENESS)
        self._results: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    async def run(self, pool: Executor, receive: Receive, function: Callable[[], Result]) -> Result:
        """Run a function in a pool.

        Raises:
            ClientDisconnected: The client disconnects first.
            Cancelled: The pools are closed.
        """
        return await until_disconnect(receive, asyncio.wrap_future(pool.submit(function)))

    def submit_background(self, key: Hashable, function: Callable[[], Result]) -> Future[Result]:
        """Return the future of background work that clients poll for.

        New work cancels other background work that has not started. A failure is returned once, and retried when the
        same key is submitted again.

        Raises:
            Cancelled: The pools are closed.
        """
        with self._lock:
            future = self._results.get(key)
            if future is None or future.cancelled():
                for other in list(self._results):
                    if self._results[other].cancel():
                        del self._results[other]
                future = self._results[key] = self._background.submit(function)
            self._results.move_to_end(key)
            while len(self._results) > MAX_RESULTS:
                self._results.popitem(last=False)
            if future.done() and not future.cancelled() and future.exception() is not None:
                self._results.pop(key, None)
            return future

    def close(self) -> None:
        """Cancel what has not started, and wait for what is running."""
        pools = (self.quick, self.slow, self.search, self.model, self._background)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in pools:
            pool.shutdown(wait=True)


async def until_disconnect(receive: Receive, awaitable: Awaitable[Result]) -> Result:
    """Await a result; raises ClientDisconnected if the client disconnects first."""
    result, disconnect = asyncio.ensure_future(awaitable), asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({result, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        raise ClientDisconnected
    finally:
        for task in (disconnect, result):
            task.cancel()  # work that has not started never starts, and asyncio does not print a failure


async def wait_until_done(future: Future[Any], timeout_seconds: float | None = None) -> None:
    """Wait until work in a pool is done, or until the timeout; neither that nor cancelling the wait cancels the work.

    There is no second future, whose exception asyncio would print if the wait has ended before.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop has been closed since
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(done.wait(), timeout_seconds)


def _make_pool(name: str, threads: int, niceness: int = 0) -> WorkerPool:
    prefix = f"attnscope-{name}"
    return WorkerPool(threads, thread_name_prefix=prefix, initializer=lower_priority, initargs=(niceness,))


async def _wait_for_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
