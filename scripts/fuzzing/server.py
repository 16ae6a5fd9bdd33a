"""Fuzz every route of the explorer with random requests, and report those that it does not survive.

The routes are those of the app. The parameters of each are learnt while it runs: their names from what a handler looks
up in a request, their ranges, choices and types from its error messages. Requests go through the guard, in this
process. A finding is a 500, an exception, an error without a message, an incomplete response, or a hang.

    .venv/bin/python -m scripts.fuzzing.server --seconds 600
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch
from urllib.parse import quote

import starlette.requests
import torch
from starlette.datastructures import QueryParams

from attnscope.explorer.handlers import model as model_handlers
from attnscope.explorer.handlers import survey as survey_handlers
from attnscope.explorer.handlers import watch as watch_handlers
from attnscope.explorer.library.library import Library
from attnscope.explorer.library.survey import SurveyView
from attnscope.explorer.library.watched_run import WatchedRunView
from attnscope.explorer.service.app import make_app
from attnscope.explorer.service.guard import ACCESS_PATH, SECURITY_HEADERS, Guard, Message, Settings
from attnscope.explorer.service.http import read_json_object
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.lazy_session import survey_session
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.recording import Trace, read
from attnscope.survey import open_survey
from tests.explorer.serving import run_coroutine, small_model
from tests.explorer.survey_folder import make_survey
from tests.explorer.watched_run import make_run

T = TypeVar("T")

MAX_CPU_SECONDS = 5.0  # of this process, for a response; a busy machine takes longer
MAX_WAIT_SECONDS = 60.0
POLL_SECONDS = 0.1
MIN_LESSONS, MAX_LESSONS = 12, 60  # requests to each route before the random ones; more if none has succeeded yet
OMITTED_SHARE = 0.15  # of the parameters in a lesson, because some exclude each other
TEXT = "to be, or not to be:\nthat is the question"
WILD_SHARE = 0.15  # of the values, which are of no use to any handler
ODD_SHARE = 0.05  # of the requests, whose method or headers are changed
LEAVING_SHARE = 0.05  # of the clients, which disconnect before the response

WILD = [
    *("", " ", "-1", "-0", "+1", "01", "1.5", "1e3", "NaN", "Infinity", "null", "true", "9999999", "10000000"),
    *(str(2**31), str(2**32), str(2**63 - 1), str(2**63), "9" * 400, "0x10", "1_000", "\u0663", "\uff11", "\x00"),
    *("..", "../../etc/passwd", "%2e%2e", "a" * 300, "x" * 9000, "\u202e", "\ud800", "'\"<script>", "{}", "[0]"),
]
WILD_JSON: list[Any] = [
    *(None, True, False, 0, -1, 1.5, -0.0, 1e308, float("inf"), float("nan"), 2**31, 2**63 - 1, 2**63, -(2**63) - 1),
    *(10**400, "", "a", "\x00", "\ud800", "\u0301" * 500, "x" * 30_000, [], [[]], [[0, 0]] * 65, [[0]], [[2**70, 0]]),
    *([[-1, -1]], [["0", "0"]], [[0.0, 0.0]], [0, 0], {}, {"a": {}}, [None], [True, False]),
]
RANGE = re.compile(r"Expected (\w+)(?: to be an integer)? from ([\d,]+) to ([\d,]+), got")
CHOICES = re.compile(r"Expected (\w+) to be one of (.+), got")
KINDS = re.compile(r"Expected (\w+) to be (\w+(?: or \w+)*), got")
RUNS = re.compile(r"Expected (\w+) as at most \d+ ranges in order, got")
SOME_RUNS = {"0-1", "1-3,4-5", "0-9", "3-1"}
TYPES = {"str", "int", "float", "bool", "list", "dict"}
WORDS = ("query", "key", "entropy", "received")  # parts of paths that no message names

looked_up: ContextVar[set[str]] = ContextVar("looked_up")


class SpiedQuery(QueryParams):
    """Query parameters that note which names are looked up."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a value, and note its name."""
        looked_up.get().add(key)
        return super().get(key, default)

    def __contains__(self, key: Any) -> bool:
        looked_up.get().add(key)
        return super().__contains__(key)


class SpiedBody(dict[str, Any]):
    """A JSON object that notes which names are looked up."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a value, and note its name."""
        looked_up.get().add(key)
        return super().get(key, default)


class Field:
    """What is known about a parameter."""

    def __init__(self) -> None:
        self.bounds: tuple[int, int] | None = None
        self.words: set[str] = set()
        self.types: set[str] = set()

    def draw(self, draw: random.Random) -> Any:
        """Draw a value that the handler may accept; numbers are often at their bounds."""
        if self.words:
            return draw.choice(sorted(self.words))
        if self.bounds is not None:
            low, high = self.bounds
            return draw.choice([low, high, draw.randint(low, high), draw.randint(low, min(high, low + 40))])
        kind = draw.choice(sorted(self.types)) if self.types else ""
        match kind:
            case "str":
                return draw_text(draw)
            case "float":
                return draw.choice([0.0, 0.01, 1.0, draw.uniform(0, 100)])
            case "bool":
                return draw.random() < 0.5
            case "list":
                return [[draw.randrange(3), draw.randrange(5)] for _ in range(draw.randrange(4))]
            case _:
                return draw.choice([0, 1, draw.randrange(8), draw.randrange(60)])


class Target(NamedTuple):
    """An app, its routes and the traces that are open in it."""

    app: Guard
    settings: Settings
    library: Library

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Methods and paths, those of the guard included."""
        routes: list[Any] = self.app._app.routes  # type: ignore[attr-defined]
        found = [(method, route.path) for route in routes for method in route.methods if method != "HEAD"]
        return sorted([*found, ("POST", ACCESS_PATH)])


class Request(NamedTuple):
    """A request, and after how many turns of the loop its client disconnects."""

    route: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    turns: int | None

    def __str__(self) -> str:
        body = f" {self.body[:300]!r}" if self.body else ""
        return f"{self.method} {self.path[:300]}{'?' if self.query else ''}{self.query[:300]}{body}"


class Fuzzer:
    """Sends requests to some apps, and learns their parameters."""

    def __init__(self, targets: list[Target], *, seed: int = 0) -> None:
        self.targets, self.seed = targets, seed
        self.fields = {(ACCESS_PATH, "token"): Field()}
        self.statuses: Counter[int] = Counter()
        self.reached: set[str] = set()
        self.findings: list[str] = []
        self.num_sent, self._is_wild = 0, True

    def run(self, *, requests: int | None = None, seconds: float | None = None) -> None:
        """Send some requests, or for some seconds."""
        run_coroutine(self._run(requests, seconds))

    async def _run(self, requests: int | None, seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        with spying():
            await self._learn_all()
            while (requests is None or self.num_sent < requests) and (end is None or time.monotonic() < end):
                draw = random.Random(f"{self.seed} {self.num_sent}")
                target = draw.choice(self.targets)
                await self._try(target, self._draw_request(draw, target, *draw.choice(target.routes)))
                self.num_sent += 1

    async def _learn_all(self) -> None:
        """Send each route some requests without wild values; each may teach one more parameter."""
        draw, self._is_wild = random.Random(self.seed), False
        for target in self.targets:
            for method, route in target.routes:
                for lesson in range(MAX_LESSONS):
                    if lesson >= MIN_LESSONS and route in self.reached:
                        break
                    await self._try(target, self._draw_request(draw, target, method, route))
        self._is_wild = True

    async def _try(self, target: Target, request: Request) -> None:
        """Send a request, and note what is wrong with the response."""
        names: set[str] = set()
        looked_up.set(names)
        try:
            status, headers, body = await finish(send(target.app, request))
        except Exception as error:
            return self._report(request, f"{type(error).__name__}: {error}")
        for name in names:
            self.fields.setdefault((request.route, name), Field())
        self.statuses[status] += 1
        if 200 <= status < 300:
            self.reached.add(request.route)
        if status == 0:  # the client had disconnected
            return None
        message = ""
        if status >= 400:
            try:
                message = json.loads(body)["error"]
            except (ValueError, KeyError, TypeError):
                return self._report(request, f"{status} without a message: {body[:100]!r}")
            self._learn(request.route, message)
        if status == 500 or status > 503:
            return self._report(request, f"{status}: {message}")
        if not set(SECURITY_HEADERS) <= set(headers):
            return self._report(request, f"{status} without the security headers")
        return None

    def _report(self, request: Request, what: str) -> None:
        self.findings.append(f"request {self.num_sent} of seed {self.seed}: {what}\n  {request}")

    def _learn(self, route: str, message: str) -> None:
        """Learn ranges, choices and types from an error message."""
        if found := RANGE.search(message):
            low, high = (int(number.replace(",", "")) for number in found.group(2, 3))
            self.fields.setdefault((route, found[1]), Field()).bounds = low, max(low, high)
        elif found := CHOICES.search(message):
            self.fields.setdefault((route, found[1]), Field()).words |= set(found[2].split(", "))
        elif found := RUNS.search(message):
            self.fields.setdefault((route, found[1]), Field()).words |= SOME_RUNS
        elif found := KINDS.search(message):
            field, words = self.fields.setdefault((route, found[1]), Field()), set(found[2].split(" or "))
            field.types |= words & TYPES
            field.words |= words - TYPES

    def _draw_request(self, draw: random.Random, target: Target, method: str, route: str) -> Request:
        parts = re.findall(r"{(\w+)}", route)
        path = route
        for name in parts:
            path = path.replace(f"{{{name}}}", str(self._draw_value(draw, target, route, name, in_path=True)))
        omitted = 0.05 if self._is_wild else OMITTED_SHARE
        known = [name for at, name in self.fields if at == route and name not in parts]
        names = [name for name in known if draw.random() >= omitted]
        values = {name: self._draw_value(draw, target, route, name) for name in names}
        query = "&".join(f"{name}={quote(str(value), errors='replace')}" for name, value in values.items())
        headers = {"host": sorted(target.settings.names)[0], "authorization": f"Bearer {target.settings.token}"}
        body = b""
        if method == "POST":
            query, headers["content-type"] = "", "application/json"
            values |= {name: draw.choice(WILD_JSON) for name in names if self._draws(draw, WILD_SHARE)}
            is_broken = self._draws(draw, 0.02)
            body = draw.choice(WILD).encode("utf-8", "replace") if is_broken else json.dumps(values).encode()
        if self._draws(draw, ODD_SHARE):
            method = draw.choice(["GET", "POST", "HEAD", "PUT", "BREW"])
            headers |= {draw.choice([*headers, "origin", "if-none-match", "sec-fetch-site"]): draw.choice(WILD)}
        turns = draw.randrange(6) if self._draws(draw, LEAVING_SHARE) else None
        return Request(route, method, path, query, headers, body, turns)

    def _draws(self, draw: random.Random, share: float) -> bool:
        """Whether to do something odd, which happens in a share of all cases."""
        return self._is_wild and draw.random() < share

    def _draw_value(self, draw: random.Random, target: Target, route: str, name: str, *, in_path: bool = False) -> Any:
        if self._draws(draw, WILD_SHARE):
            return draw.choice(WILD)
        if name == "trace":
            return draw.choice(sorted(target.library._entries) or ["0" * 32])
        if name in ("text", "token"):
            return draw_text(draw) if name == "text" else target.settings.token
        field = self.fields.get((route, name), Field())
        if in_path and field.bounds is None:
            return draw.choice([*WORDS, field.draw(draw)])
        return field.draw(draw)


def draw_text(draw: random.Random) -> str:
    """Draw a text of which a model of characters knows most."""
    characters = [*TEXT] * 20 + ["\u202e", "\x00", "\U0001f468", "\ud83d", "\u0301"]
    return "".join(draw.choices(characters, k=draw.choice([0, 1, 5, 40, 200])))


@contextmanager
def spying() -> Iterator[None]:
    """Note which parameters handlers look up."""

    async def read(request: Any) -> SpiedBody:
        return SpiedBody(await read_json_object(request))

    with ExitStack() as stack:
        stack.enter_context(patch.object(starlette.requests, "QueryParams", SpiedQuery))
        for module in (model_handlers, survey_handlers, watch_handlers):
            stack.enter_context(patch.object(module, "read_json_object", read))
        yield


async def send(app: Guard, request: Request) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Send a request to an app; the status is 0 if its client disconnected before the response.

    Raises:
        RuntimeError: The response was not complete.
    """
    messages, bodies = list[Message](), [request.body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        if request.turns is None:
            await asyncio.Event().wait()
        for _ in range(request.turns or 0):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def take(message: Message) -> None:
        messages.append(message)

    headers = {**request.headers, **({"content-length": str(len(request.body))} if request.body else {})}
    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": quote(request.path, safe="/", errors="replace").encode(),
        "query_string": request.query.encode(),
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    await app(scope, receive, take)
    if not messages and request.turns is not None:
        return 0, [], b""
    if not messages or (messages[-1].get("more_body", False) and request.turns is None):
        raise RuntimeError("the response is not complete")
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return messages[0]["status"], list(messages[0]["headers"]), body


async def finish(response: Coroutine[Any, Any, T]) -> T:
    """Wait for a response, as long as it takes little CPU time.

    Raises:
        TimeoutError: It takes too long.
    """
    task, start, start_cpu = asyncio.ensure_future(response), time.monotonic(), time.process_time()
    while not (await asyncio.wait({task}, timeout=POLL_SECONDS))[0]:
        cpu, waited = time.process_time() - start_cpu, time.monotonic() - start
        if waited > MAX_WAIT_SECONDS or cpu > MAX_CPU_SECONDS:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise TimeoutError(f"no response after {cpu:.1f} seconds of CPU time and {waited:.1f} seconds")
    return task.result()


@contextmanager
def opened_targets(folder: Path) -> Iterator[list[Target]]:
    """Three apps: traces with a model, and a survey and a watched run in a new folder."""
    torch.manual_seed(0)
    library, surveyed, watched = Library(), Library(), Library()
    model, tokenizer = small_model(TEXT)
    library.add(read(model, TEXT, tokenizer, progress=False), name="a text")
    library.add(Trace.from_attentions([torch.rand(1, 2, 5, 9).softmax(-1)]), name="weights alone")
    photographed = Trace.from_attentions([torch.rand(1, 2, 7, 7).softmax(-1)])
    photographed.attach_photo(torch.zeros(20, 30, 3, dtype=torch.uint8).numpy(), grid=(2, 3), first=1)
    library.add(photographed, name="a photo")
    library.example()
    surveyed.survey = SurveyView(open_survey(make_survey(folder)), "a survey")
    watched.watched = WatchedRunView(make_run(folder / "run"), "a run")
    with ExitStack() as stack:
        targets = []
        for shown, session in (
            (library, ModelSession(model, tokenizer, "a model")),
            (surveyed, survey_session(surveyed.survey.survey, None)),
            (watched, None),
        ):
            workers, settings = WorkerPools(), Settings("127.0.0.1", 8000)
            stack.callback(workers.close)
            stack.callback(shown.close)
            targets.append(Target(make_app(shown, session, settings, workers), settings, shown))
        yield targets


def main() -> int:
    """Fuzz for some time or some requests; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="how long to send requests")
    parser.add_argument("--requests", type=int, help="how many requests to send (default: 1000, without --seconds)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other requests")
    options = parser.parse_args()
    if options.seconds is None and options.requests is None:
        options.requests = 1000
    logging.getLogger("attnscope").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, opened_targets(Path(folder)) as targets:
        fuzzer = Fuzzer(targets, seed=options.seed)
        fuzzer.run(requests=options.requests, seconds=options.seconds)
    for finding in fuzzer.findings:
        print(finding)
    statuses = ", ".join(f"{count:,} x {status}" for status, count in sorted(fuzzer.statuses.items()))
    print(f"{fuzzer.num_sent:,} requests, {len(fuzzer.findings)} findings: {statuses}")
    routes = {route for target in targets for _, route in target.routes}
    print(f"{len(fuzzer.fields)} parameters; {len(fuzzer.reached)} of {len(routes)} routes have responded with a 2xx")
    return bool(fuzzer.findings)


if __name__ == "__main__":
    sys.exit(main())
