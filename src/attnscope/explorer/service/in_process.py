"""Ask the explorer without a network: the app answers in this process, as it would answer a browser.

In: an ASGI app and an address as the page writes it. Out: the very bytes that would be sent. For a notebook, whose page
speaks to its kernel, and for a page that is saved with its answers.
Does not know: what is asked. Memory: a few parts of an answer.
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
WAITING = 16  # parts of an answer that nobody has taken yet, before its maker waits

LOGGER = logging.getLogger("attnscope.explorer")


class StreamedResponse(NamedTuple):
    """An answer that has begun: its status, what it is, and its body in parts as they come."""

    status: int
    media: str
    parts: AsyncIterator[bytes]

    async def whole(self) -> bytes:
        """All that is left of the body."""
        return b"".join([part async for part in self.parts])


@asynccontextmanager
async def send_request(app: App, path: str, body: object = None) -> AsyncIterator[StreamedResponse]:
    """Ask for `path`, relative to /api/1/; with a body, which is sent as JSON, it is a POST.

    What is still being computed when the block is left is given up, as when a browser leaves:

        async with send_request(app, "session") as answer:
            session = json.loads(await answer.whole())
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue(WAITING)
    answering = asyncio.ensure_future(_answer(app, _scope(path, body), body, messages))
    try:
        first = await messages.get()
        if first is None:
            raise RuntimeError(f"{path[:80]}: the app ended without an answer")
        media = dict(first.get("headers", ())).get(b"content-type", b"")
        yield StreamedResponse(int(first["status"]), media.decode("latin-1"), _parts(messages))
    finally:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering


async def _parts(messages: asyncio.Queue[Message | None]) -> AsyncIterator[bytes]:
    while (message := await messages.get()) is not None:
        if part := message.get("body", b""):
            yield part


async def _answer(app: App, scope: Message, body: object, messages: asyncio.Queue[Message | None]) -> None:
    """Run the app; its messages, and None after the last of them."""
    told, never = [b"" if body is None else json.dumps(body).encode()], asyncio.Event()

    async def receive() -> Message:
        if told:
            return {"type": "http.request", "body": told.pop(), "more_body": False}
        await never.wait()  # who goes, cancels
        return {"type": "http.disconnect"}

    try:
        await app(scope, receive, messages.put)
    except Exception:  # the app has answered with a sentence already
        LOGGER.exception("%s was asked for", scope["path"])
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
