"""Random requests to every route: each gets a response, and none a 500."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from attnscope.explorer.service.guard import Guard
from scripts.fuzzing import server
from scripts.fuzzing.server import Fuzzer, Target, opened_targets
from tests.explorer.serving import run_coroutine

MAX_MISSING = 4  # of the routes, which accept few of all values: one trace, or one passage of many


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Target]]:
    with opened_targets(tmp_path_factory.mktemp("fuzz")) as targets:
        yield targets


def test_random_requests_are_answered_or_refused(targets: list[Target]) -> None:
    fuzzer = Fuzzer(targets, seed=1)
    fuzzer.run(requests=300)
    assert fuzzer.findings == []
    assert fuzzer.num_sent == 300
    missing = {route for target in targets for _, route in target.routes} - fuzzer.reached
    assert len(missing) <= MAX_MISSING, missing
    assert {"from", "to", "i0", "text", "heads"} <= {name for _, name in fuzzer.fields}, "parameters are learnt"


@pytest.mark.slow
def test_many_random_requests_are_answered_or_refused(targets: list[Target]) -> None:
    fuzzer = Fuzzer(targets, seed=2)
    fuzzer.run(seconds=120)
    assert fuzzer.findings == []


def test_the_fuzzer_finds_what_it_looks_for(targets: list[Target]) -> None:
    class Broken:
        """An app that fails in turn in each way that is looked for."""

        def __init__(self) -> None:
            self.routes, self.turn = [], -1

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.turn += 1
            if self.turn % 4 == 0:
                raise ZeroDivisionError
            if self.turn % 4 == 1:
                await send({"type": "http.response.start", "status": 500, "headers": []})
                await send({"type": "http.response.body", "body": b'{"error": "no"}'})
            if self.turn % 4 == 2:
                await send({"type": "http.response.start", "status": 404, "headers": []})
                await send({"type": "http.response.body", "body": b"not JSON"})
            if self.turn % 4 == 3:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"", "more_body": True})

    broken: Any = Broken()
    broken.routes = targets[0].app._app.routes  # type: ignore[attr-defined]
    target = targets[0]._replace(app=Guard(broken, targets[0].settings))
    fuzzer = Fuzzer([target], seed=1)
    fuzzer.run(requests=60)
    for words in ("ZeroDivisionError", "500: no", "404 without a message", "not complete"):
        assert any(words in finding for finding in fuzzer.findings), words


@pytest.mark.parametrize("limit", ["MAX_CPU_SECONDS", "MAX_WAIT_SECONDS"])
def test_a_response_that_does_not_end_is_found(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> None:
        while True:
            await asyncio.sleep(0)  # takes CPU time

    monkeypatch.setattr(server, limit, 0.05)
    with pytest.raises(TimeoutError, match="no response after"):
        run_coroutine(server.finish(never()))
