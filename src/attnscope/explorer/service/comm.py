"""The explorer over a notebook's comm: requests arrive as messages, and the server's app responds.

In: messages of the views of one widget. Out: messages with the bytes that a browser would get, from one thread. The app
is closed when all views are closed or idle, and opened again on the next request.
Does not know: widgets, traces. Memory: that of the app, while it is open.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from attnscope.errors import AttnScopeError
from attnscope.explorer.service.guard import App
from attnscope.explorer.service.http import INTERNAL_ERROR, to_json
from attnscope.explorer.service.in_process import send_request
from attnscope.explorer.service.workers import WorkerPools, wait_until_done

GRACE_SECONDS = 5.0  # after the last view has closed: moving a cell closes its view and opens another
IDLE_SECONDS = 600.0  # without a request: a closed browser sends no message, and may be opened again
NDJSON = "application/x-ndjson"

LOGGER = logging.getLogger("attnscope.explorer")

Send = Callable[[dict[str, Any], list[bytes]], object]
"""Sends a message and its buffers to all views; called in the thread of the loop."""


class OpenApp(NamedTuple):
    """An app, and the function that closes it."""

    app: App
    close: Callable[[], object]


class PendingRequest(NamedTuple):
    """A request that is not answered yet, and the view that sent it."""

    task: asyncio.Task[None]
    view: object


class NotebookLoop:
    """The event loop, in its own thread, and the worker pools of all widgets in this process."""

    def __init__(self) -> None:
        self.loop, self.workers = asyncio.new_event_loop(), WorkerPools()
        threading.Thread(target=self.loop.run_forever, name="attnscope-notebook", daemon=True).start()


@cache
def get_notebook_loop() -> NotebookLoop:
    """Return the loop of this process; the first call starts it."""
    return NotebookLoop()


class CommServer:
    """Serves the requests of all views of one widget.

    Views send these messages:

    - `{"view": "opened", "id": number}`, or `"closed"`: a view was opened or closed; `"hidden"`: its page was left,
      for example reloaded, and may come back;
    - `{"id": number, "path": path, "body": anything, "from": view}`: a request, a POST if there is a body; it is
      cancelled when its view is closed or hidden;
    - `{"cancel": number}`: cancels that request.

    A response is `{"id": number, "status": status, "more": whether another part follows}` with one buffer.

    Args:
        open_app: Opens the app on the first request.
        send: Sends a message to all views.
        files: The files of the page, by name.
        on_idle: Called after the app was closed because no view is left.
    """

    def __init__(
        self, open_app: Callable[[], OpenApp], send: Send, *, files: Mapping[str, bytes], on_idle: Callable[[], object]
    ) -> None:
        self._open_app, self._send, self._files, self._on_idle = open_app, send, files, on_idle
        self._app: Future[OpenApp] | None = None
        self._views: set[int] = set()
        self._tasks: dict[int, PendingRequest] = {}
        self._timer: asyncio.TimerHandle | None = None

    def receive(self, content: Any) -> None:
        """Handle a message, from any thread; returns at once.

        Responses are sent in the context of the caller, which tells the kernel what they reply to.
        """
        get_notebook_loop().loop.call_soon_threadsafe(self._handle, content, context=contextvars.copy_context())

    def close(self) -> Future[None]:
        """Cancel all requests, and close the app."""
        return asyncio.run_coroutine_threadsafe(self._cancel_all(), get_notebook_loop().loop)

    @property
    def is_open(self) -> bool:
        """Whether the app is open."""
        return self._app is not None

    def _handle(self, content: Any) -> None:
        match content:
            case {"id": int(number), "path": str(path)}:
                task = get_notebook_loop().loop.create_task(self._respond(number, path, content.get("body")))
                self._tasks[number] = PendingRequest(task, content.get("from"))
                self._close_after(IDLE_SECONDS)
            case {"cancel": int(number)} if number in self._tasks:
                self._tasks[number].task.cancel()
            case {"view": "opened", "id": int(number)}:
                self._views.add(number)
                self._close_after(IDLE_SECONDS)
            case {"view": "closed" | "hidden" as how, "id": int(number)}:
                self._views.discard(number)
                self._cancel(lambda pending: pending.view == number)
                if not self._views:
                    self._close_after(GRACE_SECONDS if how == "closed" else IDLE_SECONDS)
            case _:
                pass  # a message of another version or another extension

    async def _respond(self, number: int, path: str, body: object) -> None:
        def reply(status: int, part: bytes, *, more: bool = False) -> None:
            self._send({"id": number, "status": status, "more": more}, [part])

        try:
            if path in self._files:
                return reply(200, self._files[path])
            if self._app is None:
                self._app = get_notebook_loop().workers.quick.submit(self._open_app)
            opening = self._app
            await wait_until_done(opening)
            async with send_request(opening.result().app, path, body) as response:
                if response.media != NDJSON:
                    return reply(response.status, await response.read())
                async for part in response.parts:
                    reply(response.status, part, more=True)
                return reply(response.status, b"")
        except AttnScopeError as error:  # from opening; the app responds to its own errors
            self._app = None
            return reply(400, to_json({"error": " ".join(str(error).split())}))
        except Exception:
            LOGGER.exception("request for %s failed", path[:80])
            with suppress(Exception):  # sending may be what failed
                reply(500, to_json({"error": INTERNAL_ERROR}))
            return None
        finally:
            self._tasks.pop(number, None)

    def _cancel(self, chosen: Callable[[PendingRequest], bool]) -> None:
        for pending in list(self._tasks.values()):
            if chosen(pending):
                pending.task.cancel()

    def _close_after(self, seconds: float) -> None:
        """Close the app after a while; the next message restarts the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = get_notebook_loop().loop.call_later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        if self._tasks:
            return self._close_after(GRACE_SECONDS)
        self._close_app()
        if not self._views:
            self._on_idle()
        return None

    def _close_app(self) -> None:
        app, self._app = self._app, None
        if app is not None:
            app.add_done_callback(_close)

    async def _cancel_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._cancel(lambda _: True)
        self._views.clear()
        self._close_app()


def _close(app: Future[OpenApp]) -> None:
    """Close an app in a pool, because that waits for work in progress."""
    if not app.cancelled() and app.exception() is None:
        get_notebook_loop().workers.quick.submit(app.result().close)
