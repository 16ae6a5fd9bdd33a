"""A page that speaks to its kernel: questions come as messages of a comm, and the very app of the server answers them.

In: messages of the pages that show one widget. Out: messages with the bytes that a browser would get, from a thread of
its own. What was computed is let go of when nobody looks any more, and computed again for who comes back.
Does not know: widgets, traces. Memory: the app's, while somebody looks.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, NamedTuple

from attnscope.errors import AttnScopeError
from attnscope.explorer.service.guard import App
from attnscope.explorer.service.http import INTERNAL_ERROR, to_json
from attnscope.explorer.service.in_process import send_request
from attnscope.explorer.service.workers import WorkerPools

GRACE_SECONDS = 5.0  # seconds after the last view has closed: a cell that is moved closes its view and opens another
IDLE = 600.0  # seconds without a question: a browser that was closed does not say so, and may be opened again
LINES = "application/x-ndjson"

LOGGER = logging.getLogger("attnscope.explorer")

Send = Callable[[dict[str, Any], list[bytes]], object]
"""Takes a message and its buffers to all pages; called in the thread of the room."""


class OpenApp(NamedTuple):
    """An app that answers, and how to end whatever it does."""

    app: App
    close: Callable[[], object]


class NotebookLoop:
    """The thread in which all conversations of this process are held, and the lanes for what they compute."""

    def __init__(self) -> None:
        self.loop, self.work = asyncio.new_event_loop(), WorkerPools()
        threading.Thread(target=self.loop.run_forever, name="attnscope-notebook", daemon=True).start()


@cache
def get_notebook_loop() -> NotebookLoop:
    """The one of this process, from the first conversation on."""
    return NotebookLoop()


class CommServer:
    """The questions of all pages that show one widget.

    `opening` makes the app when something is asked and there is none, `left` hears that the last view has closed, and
    `files` are what the page itself is made of, by name. Pages say, as a message each:

    - `{"view": "opened", "id": number}`, and `"closed"`: that they show it, and do no longer; `"hidden"`: that the page
      is left, as when it is loaded anew, and may come back;
    - `{"id": number, "path": path, "body": anything}`: a question, a POST if there is a body; numbers are the page's;
    - `{"cancel": number}`: that nobody waits for the answer to that question.

    An answer is `{"id": number, "status": status, "more": whether another part follows}` with one buffer.
    """

    def __init__(
        self, opening: Callable[[], OpenApp], send: Send, *, files: Mapping[str, bytes], left: Callable[[], object]
    ) -> None:
        self._opening, self._send, self._files, self._left = opening, send, files, left
        self._opened: Future[OpenApp] | None = None
        self._views: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, content: Any) -> None:
        """Take a message, in any thread; returns at once.

        What is said in answer is said in the caller's context, by which a kernel knows what it is an answer to.
        """
        get_notebook_loop().loop.call_soon_threadsafe(self._hear, content, context=contextvars.copy_context())

    def close(self) -> Future[None]:
        """Give up what is being answered, and let go of the app."""
        return asyncio.run_coroutine_threadsafe(self._end(), get_notebook_loop().loop)

    @property
    def is_open(self) -> bool:
        """Whether there is an app."""
        return self._opened is not None

    def _hear(self, content: Any) -> None:
        match content:
            case {"id": int(number), "path": str(path)}:
                self._tasks[number] = get_notebook_loop().loop.create_task(
                    self._answer(number, path, content.get("body"))
                )
                self._wait(IDLE)
            case {"cancel": int(number)} if number in self._tasks:
                self._tasks[number].cancel()
            case {"view": "opened", "id": int(number)}:
                self._views.add(number)
                self._wait(IDLE)
            case {"view": "closed" | "hidden" as how, "id": int(number)}:
                self._views.discard(number)
                if not self._views:
                    self._wait(GRACE_SECONDS if how == "closed" else IDLE)
            case _:
                pass  # of another version, or somebody else's

    async def _answer(self, number: int, path: str, body: object) -> None:
        def say(status: int, part: bytes, *, more: bool = False) -> None:
            self._send({"id": number, "status": status, "more": more}, [part])

        try:
            if path in self._files:
                return say(200, self._files[path])
            if self._opened is None:
                self._opened = get_notebook_loop().work.quick.submit(self._opening)
            opened = await asyncio.shield(asyncio.wrap_future(self._opened))
            async with send_request(opened.app, path, body) as answer:
                if answer.media != LINES:
                    return say(answer.status, await answer.whole())
                async for part in answer.parts:
                    say(answer.status, part, more=True)
                return say(answer.status, b"")
        except AttnScopeError as error:  # while it was opened; the app answers its own
            self._opened = None
            return say(400, to_json({"error": " ".join(str(error).split())}))
        except Exception:
            LOGGER.exception("%s was asked for", path[:80])
            return say(500, to_json({"error": INTERNAL_ERROR}))
        finally:
            self._tasks.pop(number, None)

    def _wait(self, seconds: float) -> None:
        """Let go of the app in a while, unless something is heard before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = get_notebook_loop().loop.call_later(seconds, self._rest)

    def _rest(self) -> None:
        if self._tasks:
            return self._wait(GRACE_SECONDS)
        self._let_go()
        if not self._views:
            self._left()
        return None

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.add_done_callback(_close)

    async def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks.values()):
            task.cancel()
        self._views.clear()
        self._let_go()


def _close(opened: Future[OpenApp]) -> None:
    """End an app once it is open, in a lane: that waits for what is being computed."""
    if not opened.cancelled() and opened.exception() is None:
        get_notebook_loop().work.quick.submit(opened.result().close)
