"""Typed texts become traces and are written on, and what goes wrong meanwhile is said."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest

from attnscope.explorer.handlers.model import EventStream, ModelHandlers
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.recording import read
from tests.explorer.serving import TEXT, Handle, run_coroutine, serving, small_model, small_trace
from tests.explorer.test_server import close, decoded, dense_of

UNREADABLE = [
    *(b"", b"[]", b"{", b"\xff", b"{}", b"[" * 30_000),
    *(b'{"text": 3}', b'{"text": null}', b'{"text": ""}', b'{"text": "a", "baseline": 1}', b'{"text": "\\u4e2d"}'),
    b'{"text": "' + b"a" * 500 + b'"}',
]
TOO_MUCH = [
    *(
        {"count": 65},
        {"count": 0},
        {"count": "5"},
        {"count": True},
        {"text": ""},
        {"layer": 2},
        {"layer": -1},
        {"head": 4},
    ),
    *({"temperature": -1}, {"temperature": "x"}, {"temperature": 1e400}, {"seed": -1}, {"seed": 2**64}),
    *({"temperature": 10**400}, {"temperature": 1e-300}, {"layer": 10**4000}, {"head": 10**4000}, {"layer": 9999}),
]


@pytest.fixture(scope="module")
def live() -> Iterator[Handle]:
    model, tokenizer = small_model()
    with serving(Library(), ModelSession(model, tokenizer, "tiny")) as handle:
        yield handle


def test_a_session_with_a_model_says_what_it_can(live: Handle) -> None:
    session = live.get("/api/1/session").json
    assert (session["model"], session["has_model"], session["has_baseline"], session["can_generate"]) == (
        "tiny",
        True,
        True,
        True,
    )
    assert session["max_tokens"] == len(TEXT) + 64
    assert all(set(preset) == {"text", "note", "layer", "head"} for preset in session["presets"])
    assert all(preset["layer"] is None and preset["head"] is None for preset in session["presets"])


def test_a_typed_text_becomes_a_trace(live: Handle) -> None:
    answer = live.post("/api/1/run", {"text": "the day", "baseline": False})
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    summary = answer.json
    assert (summary["name"], summary["tokens"], summary["layers"], summary["heads"]) == ("the day", 7, 2, 8)
    assert live.get(f"/api/1/{summary['trace']}/0/tokens?from=0&to=7").json == list("the day")
    model, tokenizer = small_model()
    wanted = dense_of(read(model, "the day", tokenizer, progress=False), 1, 1)
    values, _ = decoded(live.get(f"/api/1/{summary['trace']}/1/1/row/6").body)
    close(values[0], wanted[6])
    assert live.post("/api/1/run", {"text": "the day"}).json["trace"] == summary["trace"]


def test_the_random_weight_baseline_is_another_trace(live: Handle) -> None:
    both = [live.post("/api/1/run", {"text": "so young", "baseline": baseline}).json for baseline in (False, True)]
    assert both[0]["trace"] != both[1]["trace"]
    assert both[1]["name"] == "random-weight baseline: so young"


@pytest.mark.parametrize("wish", UNREADABLE)
def test_a_text_that_cannot_be_read_is_refused_with_a_sentence(live: Handle, wish: bytes) -> None:
    answer = live.post("/api/1/run", wish)
    assert answer.status == 400
    assert answer.json["error"]


def test_a_text_is_written_on_event_by_event(live: Handle) -> None:
    wish = {"text": "the day", "count": 5, "temperature": 0, "seed": 0, "layer": 1, "head": 2}
    answer = live.post("/api/1/generate", wish)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    events = [json.loads(line) for line in answer.body.splitlines()]
    assert events[0] == {"prompt": list("the day")}
    assert [event["position"] for event in events[1:-1]] == [7, 8, 9, 10, 11]
    done = events[-1]
    assert done["done"]
    assert done["text"] == "the day" + "".join(event["token"] for event in events[1:-1])
    for event in events[1:-1]:
        values, _ = decoded(live.get(f"/api/1/{done['trace']}/1/2/row/{event['position']}").body)
        close(values[0, : event["position"] + 1], event["row"])


@pytest.mark.parametrize("change", TOO_MUCH)
def test_a_wish_that_cannot_be_granted_is_refused(live: Handle, change: dict[str, object]) -> None:
    wish = {"text": "the", "count": 2, "temperature": 0, "seed": 0, "layer": 0, "head": 0}
    answer = live.post("/api/1/generate", {**wish, **change})
    assert answer.status == 400
    assert 0 < len(answer.json["error"]) < 200


def test_without_a_model_there_is_nothing_to_type_to() -> None:
    with serving(small_trace()) as handle:
        for path in ("run", "generate"):
            assert handle.post(f"/api/1/{path}", {"text": "a"}).status == 409


def test_a_model_that_breaks_while_it_writes_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    model, tokenizer = small_model()
    steps = iter(range(3))

    def breaks(*_: object) -> None:
        if next(steps, None) is None:
            raise RuntimeError("out of memory")

    model.embedding.register_forward_hook(breaks)
    with serving(Library(), ModelSession(model, tokenizer, "tiny")) as handle:
        answer = handle.post("/api/1/generate", {"text": "the", "count": 9})
    *events, last = [json.loads(line) for line in answer.body.splitlines()]
    assert [set(event) for event in events] == [{"prompt"}, *2 * [{"token", "position", "row"}]]
    assert last == {"error": "Internal error; see the terminal for details."}
    assert "out of memory" in caplog.text


def test_who_goes_while_a_line_is_sent_keeps_nobody_else_waiting() -> None:
    model, tokenizer = small_model()
    reading, free, work = threading.Event(), threading.Event(), WorkerPools()
    steps = iter(range(2))

    def holds(*_: object) -> None:
        if next(steps, None) is None:
            reading.set()
            free.wait(30)

    model.embedding.register_forward_hook(holds)
    session, gone = ModelSession(model, tokenizer, "tiny"), threading.Event()

    async def leave() -> float:
        """Take two lines and go while the model reads; the seconds for which the loop stood still."""
        events = EventStream(session.generate("the", 9, 0.0, 0, 0, 0, cancelled=gone.is_set))
        lines = ModelHandlers(Library(), session, work)._lines(await asyncio.to_thread(events.next), events, gone)
        await anext(lines)
        await anext(lines)
        del events
        await asyncio.to_thread(reading.wait, 30)
        begun = time.monotonic()
        await lines.aclose()
        del lines
        return time.monotonic() - begun

    threading.Timer(5, free.set).start()
    assert run_coroutine(leave()) < 3
    assert gone.is_set()
    free.set()
    work.close()
    assert not [one for one in threading.enumerate() if one.name == "attnscope-continued"]
