"""Requests within this process: the app responds as it would to a browser, without a network.

In: an ASGI app and a path of the protocol. Out: the bytes that would be sent. Used by notebooks and the static export.
Does not know: routes. Memory: a few parts of a response.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

from attnscope.explorer.service.guard import App, Message

API = "/api/1/"
MAX_QUEUED = 16  # parts of a response before the app has to wait

LOGGER = logging.getLogger("attnscope.explorer")


class StreamedResponse(NamedTuple):
    """A response that has started: its status, its media type, and its body in parts."""

    status: int
    media: str
    parts: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """Read the rest of the body."""
        return b"".join([part async for part in self.parts])


@asynccontextmanager
async def send_request(app: App, path: str, body: object = None) -> AsyncIterator[StreamedResponse]:
    """Request `path`, relative to /api/1/; with a body, which is sent as JSON, it is a POST.

    Leaving the block cancels work in progress, as when a browser disconnects:

        async with send_request(app, "session") as response:
            session = json.loads(await response.read())
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue(MAX_QUEUED)
    running = asyncio.ensure_future(_run(app, _scope(path, body), body, messages))
    try:
        first = await messages.get()
        if first is None:
            raise RuntimeError(f"{path[:80]}: the app ended without a response")
        media = dict(first.get("headers", ())).get(b"content-type", b"")
        yield StreamedResponse(int(first["status"]), media.decode("latin-1"), _parts(messages))
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def _parts(messages: asyncio.Queue[Message | None]) -> AsyncIterator[bytes]:
    while (message := await messages.get()) is not None:
        if part := message.get("body", b""):
            yield part


async def _run(app: App, scope: Message, body: object, messages: asyncio.Queue[Message | None]) -> None:
    """Run the app, and queue its messages and a final None."""
    bodies, never = [b"" if body is None else json.dumps(body).encode()], asyncio.Event()

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await never.wait()  # a disconnect cancels the task instead
        return {"type": "http.disconnect"}

    try:
        await app(scope, receive, messages.put)
    except Exception:  # the app has already sent an error response
        LOGGER.exception("request for %s failed", scope["path"])
    await messages.put(None)


def _scope(path: str, body: object) -> dict[str, Any]:
    plain, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "scheme": "http",
        "path": API + unquote(plain),
        "raw_path": (API + plain).encode("utf-8", "replace"),
        "query_string": query.encode("utf-8", "replace"),
        "root_path": "",
        "headers": [(b"host", b"inside")] + (body is not None) * [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
