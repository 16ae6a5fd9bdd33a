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
from attnscope.explorer.answers.asking import Asked, Asking
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.exchange import WENT_WRONG, answered, as_json, typed_object, wanted
from attnscope.explorer.service.guard import Refused
from attnscope.explorer.service.work import Work
from attnscope.explorer.stage.ablation import Ablation
from attnscope.explorer.stage.on_call import OnCall, present
from attnscope.explorer.stage.stage import MAX_NEW, Stage
from attnscope.extras import import_extra
from attnscope.recording import Trace

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LONGEST_NAME = 80
COLDEST = 0.01  # of a temperature that is not 0: scores that are divided by less are no numbers any more
MAX_SILENCED = 64
MAX_NUMBERED = 9_999  # layers, and heads of one: more than any model has

LOGGER = logging.getLogger("attnscope.explorer")


class Taken:
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


class Typing(Asking):
    """One method for each address."""

    def __init__(self, library: Library, stage: Stage | OnCall | None, work: Work) -> None:
        super().__init__(library, work)
        self._stage = stage
        self._ablation: Ablation | None = None

    async def run(self, request: Request) -> Response:
        """A typed text through the model."""
        stage, wish = self._on_stage(), await typed_object(request)
        text, twin = wanted(wish, "text", str), wanted(wish, "twin", bool, False)

        def read(cancelled: Asked) -> dict[str, Any]:
            trace = stage.run(text, twin, cancelled=cancelled)
            return added(self.library, trace, f"untrained: {text}" if twin else text)

        return await self._told(request, read)

    async def ablate(self, request: Request) -> Response:
        """What the model predicts without some heads."""
        stage, wish = self._on_stage(), await typed_object(request)
        ablation = self._ablation = self._ablation or Ablation(stage)
        heads, how = _pairs(wanted(wish, "heads", list)), wanted(wish, "how", str, "zero")
        if how not in ("zero", "mean"):
            raise Refused(400, f"how is {how[:20]!r}; it is zero or mean.")
        entry = self.library.entry(wanted(wish, "trace", str))
        if entry is None:
            raise Refused(404, "This trace is not open here; open its folder, or type its text again.")
        name = entry.origin or entry.identity  # what it would see without its mask changes no prediction

        return await self._told(request, lambda cancelled: ablation.effect(entry.trace, name, heads, how, cancelled))

    async def _told(self, request: Request, work: Callable[[Asked], dict[str, Any]]) -> Response:
        """What the model has to say, unless the client goes first."""
        found = await self.while_wanted(request, self.work.stage, work)
        return answered(request, as_json(found), cache="no-store")

    async def generate(self, request: Request) -> Response:
        """A typed text written on, a line of JSON for each event."""
        stage, wish = self._on_stage(), await typed_object(request)
        count, seed, layer, head = (
            wanted(wish, name, int, default)
            for name, default in (("count", 32), ("seed", 0), ("layer", 0), ("head", 0))
        )
        temperature = wanted(wish, "temperature", (int, float), 0.0)
        if not 1 <= count <= MAX_NEW or not 0 <= seed < 2**63 or not 0 <= temperature <= 100:
            raise Refused(400, f"count is 1 to {MAX_NEW}, temperature 0 to 100, and seed a whole number from 0 on.")
        if 0 < temperature < COLDEST:
            raise Refused(400, f"temperature is {temperature}; it is 0 for the likeliest token, or {COLDEST} to 100.")
        if not 0 <= layer <= MAX_NUMBERED or not 0 <= head <= MAX_NUMBERED:
            raise Refused(400, f"layer and head are whole numbers from 0 to {MAX_NUMBERED:,}.")
        gone = threading.Event()
        told = stage.continued(
            wanted(wish, "text", str),
            count,
            float(temperature),
            seed,
            layer,
            head,
            cancelled=lambda: gone.is_set() or self.library.closing.is_set(),
        )
        events = Taken(told)
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
        self, event: dict[str, Any] | None, events: Taken, gone: threading.Event
    ) -> AsyncGenerator[bytes, None]:
        """Events as lines; the trace at their end goes to the library, and its name to the client."""

        def following() -> dict[str, Any] | None:
            found = events.next()
            if found is not None and "trace" in found:
                found["trace"] = added(self.library, found["trace"], found["text"])["trace"]
            return found

        try:
            while event is not None:
                yield as_json(event) + b"\n"
                event = await asyncio.wrap_future(self.work.stage.submit(following))
        except AttnScopeError as error:
            yield as_json({"error": " ".join(str(error).split())}) + b"\n"
        except Exception:
            LOGGER.exception("a text was being written on")
            yield as_json({"error": WENT_WRONG}) + b"\n"
        finally:
            self._let_go(events, gone)

    def _let_go(self, events: Taken, gone: threading.Event) -> None:
        """End the writing; not here, for it is waited for, and nobody is answered meanwhile."""
        gone.set()
        self.work.stage.submit(events.close)

    def _on_stage(self) -> Stage:
        stage = present(self._stage)
        if stage is None:
            raise Refused(409, "No model is open here, so that no text can be read; start with: attnscope look MODEL")
        return stage


def added(library: Library, trace: Trace, text: str) -> dict[str, Any]:
    """The summary of a trace that is new in the library, named by its text."""
    name = " ".join(text.split())
    name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    entry = library.entry(library.add(trace, name=name, live=True))
    assert entry is not None, "the newest trace is never forgotten"
    return entry.summary()


def _pairs(given: list[Any]) -> list[tuple[int, int]]:
    """Layers and heads, as they were sent."""
    right = all(type(one) is list and [type(number) for number in one] == [int, int] for one in given)
    if not right or len(given) > MAX_SILENCED:
        raise Refused(400, f"heads are pairs [layer, head] of whole numbers, at most {MAX_SILENCED} of them.")
    return [(layer, head) for layer, head in given]
