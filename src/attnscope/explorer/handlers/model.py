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

from attnscope.errors import AttnScopeError, UnsupportedError
from attnscope.explorer.analysis.row_report import head_output
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.library.library import Entry, Library
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import (
    INTERNAL_ERROR,
    check_int,
    json_field,
    json_int,
    query_int,
    read_json_object,
    respond_json,
    to_json,
)
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.ablation import Ablation, How
from attnscope.explorer.sessions.lazy_session import LazySession, get_session
from attnscope.explorer.sessions.model_session import MAX_NEW_TOKENS, BusyError, ModelSession
from attnscope.explorer.sessions.output_projection import project_head
from attnscope.explorer.sessions.predictions import NO_MODEL, TracePredictions
from attnscope.extras import import_extra
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

NO_PROJECTION = "No model is loaded, so W_O is not known. Start with: attnscope look MODEL"
MAX_NAME_LENGTH = 80
MAX_PREDICTIONS = 4096
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

    async def predictions(self, request: Request) -> Response:
        """Surprise, rank and next tokens of some positions; pending until they are computed."""
        entry = self.entry(request)
        entry = self.library.entry(entry.origin or "") or entry  # removing the mask of a trace changes no prediction
        start = query_int(request, "from", 0)
        stop = query_int(request, "to", start, start + MAX_PREDICTIONS)

        def predict() -> dict[str, Any]:
            session = get_session(self._session)
            if session is None or session.note is not None:  # a note says that the model is not a trained one
                return {"pending": False, "problem": NO_MODEL, "tokens": []}
            try:
                with entry.lock:
                    found = entry.background.get(TracePredictions.__name__) or TracePredictions(session, entry.trace)
                    self.library.start_background(entry, found)
            except UnsupportedError as error:
                return {"pending": False, "problem": str(error), "tokens": []}
            assert isinstance(found, TracePredictions)
            return found.report(start, stop)

        return await self.respond_quick(request, predict, cache="no-store")

    async def projection(self, request: Request) -> Response:
        """What a head adds to the residual stream at a query: its output through its columns of W_O."""
        head = self.head_ref(request)
        query = query_int(request, "query", 0, head.queries - 1)

        def project(matrix: AttentionMatrix) -> dict[str, Any]:
            values, session = head.values(), get_session(self._session)
            try:
                if values is None:
                    raise UnsupportedError("The values of this trace were not recorded, so the head has no output.")
                if session is None or session.note is not None:
                    raise UnsupportedError(NO_PROJECTION)
                output = head_output(matrix, query, values)
                added = project_head(session, head.entry.trace, head.layer, head.head, output)
            except (UnsupportedError, BusyError) as error:
                return {"problem": str(error), "output": None}
            return {"problem": None, "output": added.tolist()}

        return respond_json(request, await self.run_on_head(request, head, project), cache="no-store")

    async def ablate(self, request: Request) -> Response:
        """Compare the predictions with and without some heads; with `estimate`, only estimate how long that takes."""
        body = await read_json_object(request)
        ablation, entry, how = self._parse_ablation(body, "how")
        heads = _parse_heads(json_field(body, "heads", list))
        if json_field(body, "estimate", bool, False):
            return await self._respond_from_model(
                request, lambda cancelled: ablation.estimate(entry.trace, heads, how, cancelled)
            )
        name = entry.origin or entry.trace_id  # removing the mask of a trace changes no prediction
        return await self._respond_from_model(
            request, lambda cancelled: ablation.effect(entry.trace, name, heads, how, cancelled)
        )

    async def ablate_each(self, request: Request) -> Response:
        """Ablate every head alone; a line of JSON for each."""
        ablation, entry, how = self._parse_ablation(await read_json_object(request), "method")
        return await self._stream(
            request,
            lambda cancelled: ablation.effect_of_each(entry.trace, entry.origin or entry.trace_id, how, cancelled),
        )

    def _parse_ablation(self, body: dict[str, Any], method: str) -> tuple[Ablation, Entry, How]:
        """Parse the trace and the method of an ablation."""
        session = self._require_session()
        if not session.can_ablate:
            raise RequestError(409, f"{session.name} does not predict the next token, so ablation has no effect on it.")
        self._ablation = self._ablation or Ablation(session)
        how = json_field(body, method, str, "zero")
        if how not in ("zero", "mean"):
            raise RequestError(400, f"Expected {method} to be zero or mean, got {how[:20]!r}.")
        entry = self.library.entry(json_field(body, "trace", str))
        if entry is None:
            raise RequestError(404, "This trace is not open here; open its folder, or type its text again.")
        return self._ablation, entry, how

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
        text = json_field(body, "text", str)
        return await self._stream(
            request,
            lambda cancelled: session.generate(text, count, float(temperature), seed, layer, head, cancelled=cancelled),
        )

    async def _stream(
        self, request: Request, start: Callable[[CancelCheck], Generator[dict[str, Any], None, None]]
    ) -> Response:
        """Respond with a line of JSON for each event; errors before the first event are responses."""
        disconnected = threading.Event()
        events = EventStream(start(lambda: disconnected.is_set() or self.library.closing.is_set()))
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
            LOGGER.exception("streaming events failed")
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
