"""What the explorer asks of a model: to read typed texts, to write them on, to predict them without some heads.

In: requests. Out: the summary of a new trace; events as they happen, a line of JSON each; predictions. A client that
goes away is no longer worked for. Does not know: models. Memory: an event.
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
from attnscope.explorer.service.http import INTERNAL_ERROR, json_field, read_json_object, respond, to_json
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
MIN_TEMPERATURE = 0.01  # of a temperature that is not 0: scores that are divided by less are no numbers any more
MAX_ABLATED = 64
MAX_INDEX = 9_999  # layers, and heads of one: more than any model has

LOGGER = logging.getLogger("attnscope.explorer")


class EventStream:
    """Events that threads take, one at a time; closing waits for whoever takes one."""

    def __init__(self, events: Generator[dict[str, Any], None, None]) -> None:
        self._events, self._turn = events, threading.Lock()

    def next(self) -> dict[str, Any] | None:
        """The next event; None after the last."""
        with self._turn:
            return next(self._events, None)

    def close(self) -> None:
        """End the thread that makes them, and wait for it."""
        with self._turn:
            self._events.close()


class ModelHandlers(Handlers):
    """One method for each address."""

    def __init__(self, library: Library, stage: ModelSession | LazySession | None, work: WorkerPools) -> None:
        super().__init__(library, work)
        self._stage = stage
        self._ablation: Ablation | None = None

    async def run(self, request: Request) -> Response:
        """A typed text through the model."""
        stage, wish = self._on_stage(), await read_json_object(request)
        text, twin = json_field(wish, "text", str), json_field(wish, "twin", bool, False)

        def read(cancelled: CancelCheck) -> dict[str, Any]:
            trace = stage.run(text, twin, cancelled=cancelled)
            return add_live_trace(self.library, trace, f"untrained: {text}" if twin else text)

        return await self._told(request, read)

    async def ablate(self, request: Request) -> Response:
        """What the model predicts without some heads."""
        stage, wish = self._on_stage(), await read_json_object(request)
        ablation = self._ablation = self._ablation or Ablation(stage)
        heads, how = _pairs(json_field(wish, "heads", list)), json_field(wish, "how", str, "zero")
        if how not in ("zero", "mean"):
            raise RequestError(400, f"how is {how[:20]!r}; it is zero or mean.")
        entry = self.library.entry(json_field(wish, "trace", str))
        if entry is None:
            raise RequestError(404, "This trace is not open here; open its folder, or type its text again.")
        name = entry.origin or entry.identity  # what it would see without its mask changes no prediction

        return await self._told(request, lambda cancelled: ablation.effect(entry.trace, name, heads, how, cancelled))

    async def _told(self, request: Request, work: Callable[[CancelCheck], dict[str, Any]]) -> Response:
        """What the model has to say, unless the client goes first."""
        found = await self.until_disconnect(request, self.work.stage, work)
        return respond(request, to_json(found), cache="no-store")

    async def generate(self, request: Request) -> Response:
        """A typed text written on, a line of JSON for each event."""
        stage, wish = self._on_stage(), await read_json_object(request)
        count, seed, layer, head = (
            json_field(wish, name, int, default)
            for name, default in (("count", 32), ("seed", 0), ("layer", 0), ("head", 0))
        )
        temperature = json_field(wish, "temperature", (int, float), 0.0)
        if not 1 <= count <= MAX_NEW_TOKENS or not 0 <= seed < 2**63 or not 0 <= temperature <= 100:
            raise RequestError(
                400, f"count is 1 to {MAX_NEW_TOKENS}, temperature 0 to 100, and seed a whole number from 0 on."
            )
        if 0 < temperature < MIN_TEMPERATURE:
            raise RequestError(
                400, f"temperature is {temperature}; it is 0 for the likeliest token, or {MIN_TEMPERATURE} to 100."
            )
        if not 0 <= layer <= MAX_INDEX or not 0 <= head <= MAX_INDEX:
            raise RequestError(400, f"layer and head are whole numbers from 0 to {MAX_INDEX:,}.")
        gone = threading.Event()
        told = stage.generate(
            json_field(wish, "text", str),
            count,
            float(temperature),
            seed,
            layer,
            head,
            cancelled=lambda: gone.is_set() or self.library.closing.is_set(),
        )
        events = EventStream(told)
        try:
            first = await self.work.done(self.work.stage, request.receive, events.next)
        except BaseException:
            self._let_go(events, gone)
            raise
        streaming = import_extra("starlette.responses").StreamingResponse
        return streaming(
            self._lines(first, events, gone),
            media_type="application/x-ndjson",
            headers={"cache-control": "no-store"},
        )

    async def _lines(
        self, event: dict[str, Any] | None, events: EventStream, gone: threading.Event
    ) -> AsyncGenerator[bytes, None]:
        """Events as lines; the trace at their end goes to the library, and its name to the client."""

        def following() -> dict[str, Any] | None:
            found = events.next()
            if found is not None and "trace" in found:
                found["trace"] = add_live_trace(self.library, found["trace"], found["text"])["trace"]
            return found

        try:
            while event is not None:
                yield to_json(event) + b"\n"
                event = await asyncio.wrap_future(self.work.stage.submit(following))
        except AttnScopeError as error:
            yield to_json({"error": " ".join(str(error).split())}) + b"\n"
        except Exception:
            LOGGER.exception("a text was being written on")
            yield to_json({"error": INTERNAL_ERROR}) + b"\n"
        finally:
            self._let_go(events, gone)

    def _let_go(self, events: EventStream, gone: threading.Event) -> None:
        """End the writing; not here, for it is waited for, and nobody is answered meanwhile."""
        gone.set()
        self.work.stage.submit(events.close)

    def _on_stage(self) -> ModelSession:
        stage = get_session(self._stage)
        if stage is None:
            raise RequestError(
                409, "No model is open here, so that no text can be read; start with: attnscope look MODEL"
            )
        return stage


def add_live_trace(library: Library, trace: Trace, text: str) -> dict[str, Any]:
    """The summary of a trace that is new in the library, named by its text."""
    name = " ".join(text.split())
    name = name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"
    entry = library.entry(library.add(trace, name=name, live=True))
    assert entry is not None, "the newest trace is never forgotten"
    return entry.summary()


def _pairs(given: list[Any]) -> list[tuple[int, int]]:
    """Layers and heads, as they were sent."""
    right = all(type(one) is list and [type(number) for number in one] == [int, int] for one in given)
    if not right or len(given) > MAX_ABLATED:
        raise RequestError(400, f"heads are pairs [layer, head] of whole numbers, at most {MAX_ABLATED} of them.")
    return [(layer, head) for layer, head in given]
