"""Work whose client has gone ends without a word: no future is left whose exception Python would print."""

from __future__ import annotations

import asyncio
import gc
import http.client
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from attnscope.errors import Cancelled
from attnscope.explorer.handlers import layers
from attnscope.explorer.service.workers import (
    NICENESS,
    ClientDisconnected,
    WorkerPools,
    until_disconnect,
    wait_until_done,
)
from tests.explorer.serving import run_coroutine, serving, small_trace


@pytest.fixture(autouse=True)
def nothing_is_printed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    gc.collect()  # a future speaks when it is deleted
    found = [record.getMessage() for record in caplog.get_records("call")]
    assert found == []


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("when", ["while the server runs", "after it has closed"])
def test_scores_that_fail_after_their_client_was_told_to_wait(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SCORES_TIMEOUT_SECONDS", 0.01)
    begun, fail = threading.Event(), threading.Event()

    def score_first(*_: object) -> None:
        begun.set()
        fail.wait()
        raise Cancelled("the explorer is closing")

    with serving(small_trace(depth=1)) as handle:
        server = handle.server
        monkeypatch.setattr(server.library, "score_first", score_first)
        monkeypatch.setattr(server.library, "start_scoring", lambda entry: entry.scores)  # not in the background
        name = server.library.summaries()[0]["trace"]
        path = f"/api/1/{name}/0/heads"
        assert [handle.get(path).json["pending"] for _ in range(3)] == [True] * 3
        begun.wait()
        if when == "while the server runs":
            fail.set()
            until(lambda: handle.get(path).status == 503)
            assert handle.get("/api/1/session").status == 200
        else:
            closing = threading.Thread(target=server.close)
            closing.start()
            server._ended.wait()
            fail.set()
            closing.join()
        gc.collect()


def test_a_request_whose_client_goes_while_it_fails() -> None:
    begun, fail = threading.Event(), threading.Event()

    def head(*_: object) -> None:
        begun.set()
        fail.wait()
        raise ZeroDivisionError

    with serving(small_trace(depth=1)) as handle:
        server = handle.server
        name = server.library.summaries()[0]["trace"]
        server.library.head = head  # type: ignore[method-assign]
        connection = http.client.HTTPConnection(handle.host, timeout=20)
        connection.request("GET", f"/api/1/{name}/0/0/row/3", headers={"authorization": handle.authorization})
        begun.wait()
        connection.close()
        until(lambda: not server._uvicorn.server_state.tasks)
        fail.set()
        assert handle.get("/api/1/session").status == 200
        gc.collect()


async def never() -> dict[str, str]:
    await asyncio.Event().wait()
    return {}


def test_work_that_fails_in_the_moment_when_its_request_is_cancelled() -> None:
    async def scenario() -> None:
        work = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(until_disconnect(never, work))
        await asyncio.sleep(0)
        work.set_exception(ZeroDivisionError())
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        del work, waiting
        gc.collect()

    run_coroutine(scenario())


def test_a_client_whose_connection_fails_has_disconnected() -> None:
    async def broken() -> dict[str, str]:
        raise ConnectionResetError

    async def scenario() -> None:
        work = asyncio.get_running_loop().create_future()
        with pytest.raises(ClientDisconnected):
            await until_disconnect(broken, work)
        assert work.cancelled()
        gc.collect()

    run_coroutine(scenario())


def test_waiting_for_work_leaves_it_alone() -> None:
    async def scenario() -> None:
        work: Future[int] = Future()
        await wait_until_done(work, 0.01)
        waiting = asyncio.ensure_future(wait_until_done(work))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert not work.done()
        assert work.set_running_or_notify_cancel()
        waiting = asyncio.ensure_future(wait_until_done(work))
        work.set_exception(ZeroDivisionError())
        await waiting
        assert isinstance(work.exception(), ZeroDivisionError)

    run_coroutine(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are those of Linux")
@pytest.mark.parametrize("niceness", [0, 15])
def test_slow_work_runs_after_everything_else(niceness: int) -> None:
    def niceness_in(pool: Executor) -> int:
        return pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()

    def try_pools() -> tuple[int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        workers = WorkerPools()
        try:
            return niceness_in(workers.quick), niceness_in(workers.slow)
        finally:
            workers.close()

    with ThreadPoolExecutor(1) as thread:  # whose own priority is lowered, and not that of this process
        assert thread.submit(try_pools).result() == (niceness, max(niceness, NICENESS))


def test_work_of_closed_pools_is_cancelled() -> None:
    pools = WorkerPools()
    pools.close()
    with pytest.raises(Cancelled, match="is closing"):
        run_coroutine(pools.run(pools.slow, never, lambda: None))
    with pytest.raises(Cancelled, match="is closing"):
        pools.submit_background("key", lambda: None)
