"""What cannot be told is said so, once, and keeps nothing else from being told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from attnscope.errors import UnsupportedError
from attnscope.explorer.library.library import Entry, Library
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer
from tests.explorer.serving import Answer, serving, small_trace
from tests.explorer.test_server import Shown


@pytest.fixture
def shown() -> Iterator[Shown]:
    trace = small_trace()
    with serving(trace) as handle:
        yield Shown(handle, trace)


class FailsOnce(Library):
    """Scores that cannot be computed the first time, and are waited for until they may end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.held, self.free = 0, threading.Event(), threading.Event()

    def scores(self, entry: Entry, layer: int, head: int) -> tuple[list[dict[str, str]], dict[str, float]]:
        self.begun += 1
        self.held.set()
        assert self.free.wait(30)
        if self.begun == 1:
            raise UnsupportedError("this cannot be scored")
        return [], {"entropy": 1.0}


def test_scores_that_fail_are_told_of_once_and_then_tried_again() -> None:
    trace, library = Trace.from_attentions([torch.eye(16_385, 3)[None, None]]), FailsOnce()
    library.add(trace, name="long")
    with serving(library) as handle:
        shown = Shown(handle, trace)
        assert shown.get("0/0/scores").json["pending"]
        assert library.held.wait(30)
        assert shown.get("0/0/scores").json["pending"]
        library.free.set()
        failed = settled(shown)
        assert (failed.status, failed.json) == (400, {"error": "this cannot be scored"})
        assert library.begun == 1
        assert shown.get("0/0/scores").json["pending"]
        assert settled(shown).json["scores"] == {"entropy": 1.0}
        assert library.begun == 2


def settled(shown: Shown) -> Answer:
    """What is said of the scores of a long text once they are no longer computed."""
    until = time.monotonic() + 60
    while (found := shown.get("0/0/scores")).json.get("pending"):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def test_how_far_a_head_has_come_is_told_while_its_texts_are_decoded(shown: Shown) -> None:
    entry = shown.handle.server.library.entry(shown.name)
    assert entry is not None
    held, free = threading.Event(), threading.Event()

    def decode() -> None:
        with entry.lock:
            held.set()
            free.wait(30)

    thread = threading.Thread(target=decode)
    thread.start()
    assert held.wait(30)
    try:
        begun = time.monotonic()
        assert shown.get("0/2/status").json == {"coarse": "absent", "progress": None}
        assert shown.handle.get("/api/1/session").status == 200
        assert time.monotonic() - begun < 20
    finally:
        free.set()
        thread.join()


@pytest.mark.parametrize(
    "path",
    ["query/3", "key/1", "profile", "scores", "row/3", "col/1", "cells?i0=0&i1=6&j0=0&j1=6"],
)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused_and_not_taken_for_hidden(path: str, broken: float) -> None:
    weights = torch.rand(1, 2, 6, 6).softmax(-1).tril()
    weights[0, 0, 3, 1] = broken
    trace = Trace.from_attentions([weights])
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        answer = shown.get(f"0/0/{path}")
        assert answer.status == 400
        assert "NaN" in answer.json["error"]
        assert shown.get(f"0/1/{path}").status == 200
        assert shown.get("0/0/row/2").status == 200


def test_a_recording_that_is_broken_is_refused_where_it_is() -> None:
    trace = small_trace()
    layer = trace.layer(0)
    assert isinstance(layer, Layer)
    layer.merge_calls().query[0, 0, 5] = torch.nan
    with serving(trace) as handle:
        broken = Shown(handle, trace)
        for path in ("query/5", "key/2", "profile", "scores", "row/5", "col/2"):
            assert broken.get(f"0/0/{path}").status == 400, path
        for path in ("0/0/query/6", "0/0/key/6", "0/0/row/4", "0/1/scores"):
            assert broken.get(path).status == 200, path
