"""A page that speaks to its kernel gets what a browser gets from the server, and nobody keeps what nobody looks at."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from attnscope.errors import Cancelled, SettingError
from attnscope.explorer.library.library import Library
from attnscope.explorer.service import comm
from attnscope.explorer.service.app import make_router
from attnscope.explorer.service.comm import CommServer, OpenApp, get_notebook_loop
from attnscope.explorer.sessions.model_session import ModelSession
from tests.explorer.model_sessions import TEXT, make_session
from tests.explorer.serving import PAGE, Handle, small_trace

MAX_SECONDS = 20
NUMBERS = itertools.count(2**40)


class Page:
    """One side of a conversation: what a widget in a browser would do."""

    def __init__(self, session: ModelSession | None = None) -> None:
        self.session = session
        self.libraries: list[Library] = []
        self.responses: list[tuple[dict[str, Any], list[bytes], str]] = []
        self.left = 0
        self.conversation = CommServer(self.open, self.take, files=PAGE, on_idle=self.leave)
        self._changed = threading.Condition()

    def open(self) -> OpenApp:
        library = Library()
        library.add(small_trace(), name="shown")
        self.libraries.append(library)
        return OpenApp(make_router(library, self.session, get_notebook_loop().workers, assets=PAGE), library.close)

    def leave(self) -> None:
        self.left += 1

    def take(self, content: dict[str, Any], parts: list[bytes]) -> None:
        with self._changed:
            self.responses.append((content, parts, threading.current_thread().name))
            self._changed.notify_all()

    def request(self, path: str, **body: Any) -> int:
        number = next(NUMBERS)
        self.conversation.receive({"id": number, "path": path, **body})
        return number

    def answers(self, number: int) -> list[tuple[dict[str, Any], list[bytes]]]:
        """All parts of an answer, once the last has come."""

        def parts() -> list[tuple[dict[str, Any], list[bytes]]]:
            return [(content, parts) for content, parts, _ in self.responses if content["id"] == number]

        with self._changed:
            assert self._changed.wait_for(lambda: parts() and not parts()[-1][0]["more"], MAX_SECONDS), "no answer"
        return parts()

    def fetch(self, path: str, **body: Any) -> tuple[int, bytes]:
        """The status and the body of an answer in one part."""
        [(content, [part])] = self.answers(self.request(path, **body))
        return content["status"], part


def until(true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + MAX_SECONDS
    while not true():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.01)


@pytest.fixture
def page() -> Iterator[Page]:
    found = Page()
    yield found
    found.conversation.close().result()


def test_the_kernel_says_what_the_server_says(page: Page, served: Callable[..., Handle]) -> None:
    server = served(small_trace())
    name = json.loads(page.fetch("session")[1])["traces"][0]["trace"]
    for rest in ("meta", "0/1/0/0/0?ch=mean", "1/tokens?side=key&from=3&to=9", "0/0/row/5", "9/0/row/5", "0/2/nothing"):
        there = server.get(f"/api/1/{name}/{rest}")
        assert page.fetch(f"{name}/{rest}") == (there.status, there.body), rest
    assert page.fetch("run", body={"text": "a"})[0] == 409  # there is no model


def test_the_page_itself_comes_from_the_kernel_and_opens_nothing(page: Page) -> None:
    assert page.fetch("explorer.css") == (200, PAGE["explorer.css"])
    assert not page.conversation.is_open


def test_a_stream_comes_in_parts_and_its_end_is_told() -> None:
    page = Page(make_session())
    wish = {"text": TEXT, "count": 3, "temperature": 0, "seed": 0, "layer": 0, "head": 0}
    answers = page.answers(page.request("generate", body=wish))
    assert [content["more"] for content, _ in answers] == [*[True] * (len(answers) - 1), False]
    events = [json.loads(part) for _, [part] in answers[:-1]]
    assert [next(iter(event)) for event in events] == ["prompt", "token", "token", "token", "done"]
    page.conversation.close().result()


def test_what_is_cancelled_is_not_answered_and_others_are(page: Page) -> None:
    begun, go_on = threading.Event(), threading.Event()
    opening = page.conversation._open_app

    def slowly() -> OpenApp:
        begun.set()
        go_on.wait()
        return opening()

    page.conversation._open_app = slowly
    given_up, other = page.request("session"), page.request("session")
    begun.wait()
    page.conversation.receive({"cancel": given_up})
    go_on.set()
    page.answers(other)
    page.fetch("session")
    assert all(content["id"] != given_up for content, *_ in page.responses)


@pytest.mark.parametrize("how", ["closed", "hidden"])
def test_a_view_that_goes_takes_its_requests_along_and_no_others(
    page: Page, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(comm, "IDLE_SECONDS", 0.05)
    begun, cancelled, closed = list[str](), list[str](), threading.Event()

    async def wait(scope: Any, *_: object) -> None:
        begun.append(scope["path"])
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(scope["path"])

    page.conversation._open_app = lambda: OpenApp(wait, closed.set)
    for view in (1, 2):
        page.conversation.receive({"view": "opened", "id": view})
        for path in ("tile", "row"):
            page.request(f"{path}{view}", **{"from": view})
    until(lambda: len(begun) == 4, "the requests")
    page.conversation.receive({"view": how, "id": 1})
    until(lambda: len(cancelled) == 2, "the first view")
    assert cancelled == ["/api/1/tile1", "/api/1/row1"]
    assert not closed.is_set()
    page.conversation.receive({"view": how, "id": 2})
    until(closed.is_set, "the app to be closed, which waits for requests")
    assert sorted(cancelled) == sorted(begun)
    assert page.responses == []


def test_a_closed_conversation_cancels_what_is_under_way(page: Page) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def wait(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    page.conversation._open_app = lambda: OpenApp(wait, lambda: None)
    page.request("tile")
    begun.wait()
    page.conversation.close().result()
    assert cancelled.wait(MAX_SECONDS)


def test_a_closed_view_ends_the_work_in_the_pools(page: Page) -> None:
    """As far as a real handler has come: what runs is told to stop, and what waits in the queue never begins."""
    work, begun, checks = get_notebook_loop().workers, threading.Event(), list[bool]()
    free = threading.Event()
    page.fetch("session")
    (library,) = page.libraries

    def compute(key: object, function: object, size: object) -> None:
        begun.set()
        free.wait(MAX_SECONDS)
        raise Cancelled("cancelled")

    library.cache.get = compute  # type: ignore[method-assign, assignment]
    name = library.summaries()[0]["trace"]
    for layer in (0, 1):
        page.request(f"{name}/{layer}/thumbs?ch=mean", **{"from": 1})
    begun.wait()
    until(lambda: work.slow._work_queue.qsize() == 1, "the second request in the queue")
    page.conversation.receive({"view": "closed", "id": 1})
    until(lambda: not page.conversation._tasks, "the requests")
    begun.clear()
    free.set()
    until(lambda: work.slow._work_queue.qsize() == 0, "the queue")
    work.slow.submit(checks.append, True).result()
    assert not begun.is_set()


def test_messages_of_others_are_passed_over(page: Page) -> None:
    for content in (None, [], "a word", {}, {"id": "1", "path": "session"}, {"id": 1}, {"cancel": 5}, {"view": "up"}):
        page.conversation.receive(content)
    assert page.fetch("session")[0] == 200
    assert len(page.responses) == 1


def test_an_answer_is_given_in_the_context_of_its_question(page: Page) -> None:
    asked, seen = contextvars.ContextVar("asked", default=""), []
    take = page.conversation._send
    page.conversation._send = lambda content, parts: (seen.append(asked.get()), take(content, parts))
    for word in ("first", "second"):
        context = contextvars.copy_context()
        context.run(asked.set, word)
        page.answers(context.run(page.request, "session"))
    assert seen == ["first", "second"]


def test_answers_leave_the_thread_of_the_caller_alone(page: Page) -> None:
    page.fetch("session")
    assert {name for *_, name in page.responses} == {"attnscope-notebook"}


def test_who_closes_the_last_view_closes_the_library_and_who_comes_back_gets_another(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "GRACE_SECONDS", 0.05)
    for view in (1, 2):
        page.conversation.receive({"view": "opened", "id": view})
    first = page.fetch("session")
    page.conversation.receive({"view": "closed", "id": 1})
    time.sleep(0.2)
    assert page.conversation.is_open, "another view is open"
    page.conversation.receive({"view": "closed", "id": 2})
    until(lambda: page.left, "the last view")
    assert not page.conversation.is_open
    until(page.libraries[0].closing.is_set, "the library")
    assert page.fetch("session") == first
    assert len(page.libraries) == 2


def test_a_view_that_is_opened_again_in_time_keeps_the_library(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "GRACE_SECONDS", 0.3)
    page.conversation.receive({"view": "opened", "id": 1})
    page.fetch("session")
    page.conversation.receive({"view": "closed", "id": 1})
    page.conversation.receive({"view": "opened", "id": 2})
    time.sleep(0.6)
    page.fetch("session")
    assert (len(page.libraries), page.left) == (1, 0)


def test_a_page_that_is_loaded_anew_keeps_the_library_and_one_that_never_comes_back_does_not(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "GRACE_SECONDS", 0.05)
    page.conversation.receive({"view": "opened", "id": 1})
    page.fetch("session")
    page.conversation.receive({"view": "hidden", "id": 1})
    time.sleep(0.2)
    assert (page.conversation.is_open, page.left) == (True, 0)
    monkeypatch.setattr(comm, "IDLE_SECONDS", 0.05)
    page.conversation.receive({"view": "hidden", "id": 1})
    until(lambda: page.left, "the page that was left")
    assert not page.conversation.is_open


def test_a_view_that_asks_for_nothing_for_long_keeps_no_library(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "IDLE_SECONDS", 0.05)
    page.conversation.receive({"view": "opened", "id": 1})
    page.fetch("session")
    until(lambda: not page.conversation.is_open, "rest")
    assert page.left == 0  # the view may ask again
    assert page.fetch("session")[0] == 200


def test_what_cannot_be_opened_is_said_in_words_and_tried_again(page: Page) -> None:
    opening = page.conversation._open_app

    def refuse() -> OpenApp:
        page.conversation._open_app = opening
        raise SettingError("the trace is gone;\n run the cell again")

    page.conversation._open_app = refuse
    status, body = page.fetch("session")
    assert (status, json.loads(body)) == (400, {"error": "the trace is gone; run the cell again"})
    assert page.fetch("session")[0] == 200


def test_a_closed_conversation_has_let_go(page: Page) -> None:
    page.fetch("session")
    page.conversation.close().result()
    assert not page.conversation.is_open
    until(page.libraries[0].closing.is_set, "the library")
