"""Handlers that run the model: on typed texts, to generate, and with ablated heads.

In: requests. Out: the summary of a new trace; events as lines of JSON; predictions. The work of a client that
disconnects is cancelled. Does not know: models. Memory: one event.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

from attnscope.errors import AttnScopeError
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import (
    INTERNAL_ERROR,
    check_int,
    json_field,
    json_int,
    read_json_object,
    respond_json,
    to_json,
)
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.ablation import Ablation
from attnscope.explorer.sessions.lazy_session import LazySession, get_session
from attnscope.explorer.sessions.model_session import MAX_NEW_TOKENS, ModelSession
from attnscope.extras import import_extra
from attnscope.recording import Trace

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_NAME_LENGTH = 80
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100  # unless it is 0: logits divided by less overflow
MAX_ABLATED = 64
MAX_INDEX = 9_999  # of a layer or head: more than any model has

LOGGER = logging.getLogger("attnscope.explorer")


class EventStream:
    """Events that threads take one at a time; `close` waits for a thread that is taking one."""

    def __init__(self, events: Generator[dict[str, Any], None, None]) -> None:
        self._events, self._lock = events, threading.Lock()

    def next(self) -> dict[str, Any] | None:
        """Return the next event, or None after the last."""
        with self._lock:
            return next(self._events, None)

    def close(self) -> None:
        """End the thread that produces events, and wait for it."""
        with self._lock:
            self._events.close()


class ModelHandlers(Handlers):
    """Routes that run the model."""

    def __init__(self, library: Library, session: ModelSession | LazySession | None, workers: WorkerPools) -> None:
        super().__init__(library, workers)
        self._session = session
        self._ablation: Ablation | None = None

    async def run(self, request: Request) -> Response:
        """Run the model on a typed text."""
        session, body = self._require_session(), await read_json_object(request)
        text, baseline = json_field(body, "text", str), json_field(body, "baseline", bool, False)

        def read(cancelled: CancelCheck) -> dict[str, Any]:
            trace = session.run(text, baseline, cancelled=cancelled)
            return add_live_trace(self.library, trace, f"random-weight baseline: {text}" if baseline else text)

        return await self._respond_from_model(request, read)

    async def ablate(self, request: Request) -> Response:
        """Compare the predictions with and without some heads."""
        session, body = self._require_session(), await read_json_object(request)
        ablation = self._ablation = self._ablation or Ablation(session)
        heads, how = _parse_heads(json_field(body, "heads", list)), json_field(body, "how", str, "zero")
        if how not in ("zero", "mean"):
            raise RequestError(400, f"Expected how to be zero or mean, got {how[:20]!r}.")
        entry = self.library.entry(json_field(body, "trace", str))
        if entry is None:
            raise RequestError(404, "This trace is not open here; open its folder, or type its text again.")
        name = entry.origin or entry.trace_id  # removing the mask of a trace changes no prediction
        return await self._respond_from_model(
            request, lambda cancelled: ablation.effect(entry.trace, name, heads, how, cancelled)
        )

    async def _respond_from_model(
        self, request: Request, function: Callable[[CancelCheck], dict[str, Any]]
    ) -> Response:
        result = await self.run_cancellable(request, self.workers.model, function)
        return respond_json(request, result, cache="no-store")

    async def generate(self, request: Request) -> Response:
        """Generate from a typed text; a line of JSON for each event."""
        session, body = self._require_session(), await read_json_object(request)
        count = json_int(body, "count", 32, minimum=1, maximum=MAX_NEW_TOKENS)
        seed = json_int(body, "seed", 0)
        layer, head = (json_int(body, name, 0, maximum=MAX_INDEX) for name in ("layer", "head"))
        temperature = json_field(body, "temperature", (int, float), 0.0)
        if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
            raise RequestError(
                400, f"Expected temperature 0, or {MIN_TEMPERATURE} to {MAX_TEMPERATURE}, got {str(temperature)[:20]}."
            )
        disconnected = threading.Event()
        events = EventStream(
            session.generate(
                json_field(body, "text", str),
                count,
                float(temperature),
                seed,
                layer,
                head,
                cancelled=lambda: disconnected.is_set() or self.library.closing.is_set(),
            )
        )
        try:
            first = await self.workers.run(self.workers.model, request.receive, events.next)
        except BaseException:
            self._stop(events, disconnected)
            raise
        return import_extra("starlette.responses").StreamingResponse(
            self._lines(first, events, disconnected),
            media_type="application/x-ndjson",
            headers={"cache-control": "no-store"},
        )

    async def _lines(
        self, event: dict[str, Any] | None, events: EventStream, disconnected: threading.Event
    ) -> AsyncGenerator[bytes, None]:
        """Yield events as lines; the trace in the last event goes to the library, and its id to the client."""

        def take_next() -> dict[str, Any] | None:
            found = events.next()
            if found is not None and "trace" in found:
                found["trace"] = add_live_trace(self.library, found["trace"], found["text"])["trace"]
            return found

        try:
            while event is not None:
                yield to_json(event) + b"\n"
                event = await asyncio.wrap_future(self.workers.model.submit(take_next))
        except AttnScopeError as error:
            yield to_json({"error": " ".join(str(error).split())}) + b"\n"
        except Exception:
            LOGGER.exception("generation failed")
            yield to_json({"error": INTERNAL_ERROR}) + b"\n"
        finally:
            self._stop(events, disconnected)

    def _stop(self, events: EventStream, disconnected: threading.Event) -> None:
        """Cancel generation, in a pool: waiting for its thread here would block the event loop."""
        disconnected.set()
        self.workers.model.submit(events.close)

    def _require_session(self) -> ModelSession:
        session = get_session(self._session)
        if session is None:
            raise RequestError(409, "No model is loaded; start with: attnscope look MODEL")
        return session


def add_live_trace(library: Library, trace: Trace, text: str) -> dict[str, Any]:
    """Add a trace to the library, named by its text, and return its summary."""
    name = " ".join(text.split())
    name = name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"
    entry = library.entry(library.add(trace, name=name, live=True))
    assert entry is not None, "the newest trace is never dropped"
    return entry.summary()


def _parse_heads(pairs: list[Any]) -> list[tuple[int, int]]:
    """Parse [layer, head] pairs."""
    if len(pairs) > MAX_ABLATED or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        raise RequestError(400, f"Expected heads as at most {MAX_ABLATED} pairs [layer, head] of integers.")
    return [
        (check_int("layer", layer, maximum=MAX_INDEX), check_int("head", head, maximum=MAX_INDEX))
        for layer, head in pairs
    ]
