"""A trace shows itself in a notebook, and what nobody looks at or holds is let go of."""

from __future__ import annotations

import builtins
import gc
import json
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from ipywidgets.widgets import widget as ipywidgets

from attnscope.errors import SettingError, UnsupportedError
from attnscope.explorer.service import comm
from attnscope.explorer.widget import Widget, make_display_bundle
from attnscope.recording import Trace, record
from tests.explorer.serving import small_model, small_trace

VIEW = "application/vnd.jupyter.widget-view+json"
MAX_SECONDS = 20


def until(true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + MAX_SECONDS
    while not true():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.01)
        gc.collect()


def model_of(trace: Trace) -> str:
    return make_display_bundle(trace)[0][VIEW]["model_id"]


def widget_of(trace: Trace) -> Widget:
    found = ipywidgets._instances[model_of(trace)]
    assert isinstance(found, Widget)
    return found


def look_and_leave(widget: Widget, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page does that is opened and closed again."""
    monkeypatch.setattr(comm, "GRACE_SECONDS", 0.05)
    for content in ({"view": "opened", "id": 1}, {"id": 2, "path": "session"}):
        widget._receive(widget, content, [])
    until(lambda: widget._server.is_open, "an answer")
    widget._receive(widget, {"view": "closed", "id": 1}, [])
    until(lambda: not widget._server.is_open, "rest")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test closes what it has opened: a widget that is left is a trace that is left."""
    before = set(ipywidgets._instances)
    yield
    for name in set(ipywidgets._instances) - before:
        if name in ipywidgets._instances:
            ipywidgets._instances[name].close()


def test_a_trace_shows_itself_with_the_same_widget_each_time() -> None:
    trace = small_trace()
    data, _ = make_display_bundle(trace)
    assert data["text/plain"] == repr(trace)
    assert data[VIEW]["model_id"] == model_of(trace)
    assert model_of(small_trace()) != model_of(trace)


def test_a_trace_that_has_grown_shows_what_it_has_become() -> None:
    model, tokenizer = small_model()
    with torch.no_grad(), record(model, tokenizer) as trace:
        model(torch.tensor([[1, 2, 3]]))
        before = widget_of(trace)
        model(torch.tensor([[1, 2, 3]]))
    assert widget_of(trace) is not before
    assert before.comm is None


def test_the_browser_is_told_little_and_the_explorer_is_shared() -> None:
    first, second = Widget(small_trace()), Widget(small_trace())
    assert len(json.dumps(first.get_state())) < 5000
    assert first._build == second._build
    assert len(first._server._files["explorer.js"]) > 50_000


def test_it_begins_with_the_head_that_was_asked_for() -> None:
    assert Widget(small_trace(), layer=1, head=2).state == "#1/-/L1H2/map"
    assert small_trace().widget(layer=-1, height=400).state == "#1/-/L1H0/map"
    assert Widget(small_trace()).state == "", "the explorer chooses"


def test_several_traces_have_names_of_their_own() -> None:
    other = small_trace("another text\n")
    library = small_trace().widget(other)._library
    assert library
    assert [one["name"] for one in library.summaries()] == ["Decoder", "Decoder (2)"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head": 4}, "head from 0 to 3 .*got 4"),
        ({"head": -1}, "got -1"),
        ({"height": 10}, "240 to 4,000 pixels, got 10"),
    ],
)
def test_what_cannot_be_begun_with_is_refused(options: dict[str, int], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        Widget(small_trace(), **options)


def test_only_traces_are_taken() -> None:
    others: Any = ["a folder"]
    for wrong in ([], others):
        with pytest.raises(SettingError, match="one or more traces"):
            Widget(*wrong)


def test_what_cannot_be_shown_is_refused_at_once() -> None:
    model, tokenizer = small_model()
    with torch.no_grad(), record(model, tokenizer, keep="statistics") as trace:
        model(torch.tensor([[1, 2, 3]]))
    with pytest.raises(UnsupportedError, match="keep='matrix'"):
        trace.widget()


def test_a_trace_that_shows_itself_goes_when_nobody_looks_or_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(ipywidgets._instances)
    trace = small_trace()
    look_and_leave(widget_of(trace), monkeypatch)
    gone = weakref.ref(trace)
    assert set(ipywidgets._instances) - before
    del trace
    until(lambda: gone() is None, "the trace")
    until(lambda: not set(ipywidgets._instances) - before, "the widget, and its layout")


def test_a_trace_that_is_looked_at_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "GRACE_SECONDS", 0.05)
    trace = small_trace()
    widget, held = widget_of(trace), weakref.ref(trace)
    widget._receive(widget, {"view": "opened", "id": 1}, [])
    del trace
    time.sleep(0.3)
    gc.collect()
    assert held() is not None
    assert widget.comm is not None


def test_a_trace_that_was_left_and_is_held_can_be_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_trace()
    widget = widget_of(trace)
    look_and_leave(widget, monkeypatch)
    assert widget._traces == ()
    assert widget_of(trace) is widget
    look_and_leave(widget, monkeypatch)


def test_a_widget_of_ones_own_holds_its_traces_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(ipywidgets._instances)
    trace = small_trace()
    widget, gone = trace.widget(), weakref.ref(trace)
    del trace
    look_and_leave(widget, monkeypatch)
    gc.collect()
    assert gone() is not None
    widget.close()
    assert set(ipywidgets._instances) == before
    until(lambda: gone() is None, "the trace")
    widget.close()  # once more changes nothing


def test_outside_a_notebook_a_trace_is_a_line() -> None:
    trace = small_trace()
    assert trace._repr_mimebundle_() == {"text/plain": repr(trace)}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """IPython, as in a terminal."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()
    builtins.__dict__.pop("__IPYTHON__", None)  # what says that this process is a notebook


def test_in_a_terminal_a_trace_is_a_line(shell: Any) -> None:
    trace = small_trace()
    assert shell.display_formatter.format(trace)[0] == {"text/plain": repr(trace)}


def test_in_a_notebook_a_trace_is_a_line_only_where_anywidget_is_missing(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = small_trace()
    shell.kernel = None  # a shell that has this is a notebook's
    assert shell.display_formatter.format(trace)[0].keys() == {"text/plain", VIEW}
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "attnscope.explorer.widget")
    assert shell.display_formatter.format(trace)[0] == {"text/plain": repr(trace)}
