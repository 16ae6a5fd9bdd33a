"""The app answers inside a process as it answers a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from attnscope.explorer.library.library import Library
from attnscope.explorer.service.app import make_router
from attnscope.explorer.service.in_process import send_request
from attnscope.explorer.service.workers import WorkerPools
from tests.explorer.model_sessions import TEXT, make_session
from tests.explorer.serving import Handle, run_coroutine, small_trace


def inside(library: Library, work: WorkerPools, session: Any = None) -> Any:
    return make_router(library, session, work, assets={})


async def fetch(app: Any, path: str, body: object = None) -> tuple[int, str, bytes]:
    async with send_request(app, path, body) as answer:
        return answer.status, answer.media, await answer.read()


def test_the_bytes_are_those_that_a_browser_gets(served: Callable[..., Handle]) -> None:
    trace, library, work = small_trace(), Library(), WorkerPools()
    name = library.add(trace, name="shown")
    app, server = inside(library, work), served(trace)
    paths = [
        f"{name}/{rest}"
        for rest in ("meta", "0/1/0/0/0?ch=mean", "1/tokens?side=key&from=3&to=9", "0/0/row/5", "9/0/row/5", "0/2/x")
    ]
    for path in ["session", *paths]:
        status, media, body = run_coroutine(fetch(app, path))
        there = server.get(f"/api/1/{path}")
        assert (status, media, body) == (there.status, there.headers["content-type"], there.body), path
    work.close()


def test_what_is_written_on_comes_event_by_event() -> None:
    library, work = Library(), WorkerPools()
    app = inside(library, work, make_session())

    async def written() -> list[dict[str, Any]]:
        wish = {"text": TEXT, "count": 4, "temperature": 0, "seed": 0, "layer": 0, "head": 0}
        async with send_request(app, "generate", wish) as answer:
            assert (answer.status, answer.media) == (200, "application/x-ndjson")
            return [json.loads(part) async for part in answer.parts]

    events = run_coroutine(written())
    assert ["prompt" in events[0], *("token" in event for event in events[1:-1])] == 5 * [True]
    assert library.entry(events[-1]["trace"])
    work.close()


def test_who_leaves_before_the_end_ends_the_work() -> None:
    async def runs(leave: Callable[[Any], Awaitable[None]]) -> bool:
        ended = asyncio.Event()

        async def endless(scope: object, receive: object, send: Any) -> None:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    await send({"type": "http.response.body", "body": b"more", "more_body": True})
            finally:
                ended.set()

        await leave(endless)
        return ended.is_set()

    async def after_a_part(app: Any) -> None:
        async with send_request(app, "generate", {}) as answer:
            assert await anext(answer.parts) == b"more"

    async def before_the_first(app: Any) -> None:
        asking = asyncio.ensure_future(fetch(app, "generate", {}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    assert run_coroutine(runs(after_a_part))
    assert run_coroutine(runs(before_the_first))


def test_what_goes_wrong_in_the_app_is_told_as_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Library):
        def summaries(self) -> list[dict[str, Any]]:
            raise ZeroDivisionError

    library, work = Broken(), WorkerPools()
    app = inside(library, work)
    status, _, body = run_coroutine(fetch(app, "session"))
    assert (status, json.loads(body)) == (500, {"error": "Internal error; see the terminal for details."})
    assert "request for /api/1/session failed" in caplog.text
    work.close()
