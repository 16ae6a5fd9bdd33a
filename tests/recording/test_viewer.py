"""A trace is shown by whatever is registered as a viewer; recording does not know the explorer."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnscope.errors import MissingExtraError
from attnscope.recording import Trace, viewer


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    viewer.load_viewer.cache_clear()
    yield
    viewer.load_viewer.cache_clear()


def test_any_registered_viewer_shows_a_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = list[Any]()
    own = SimpleNamespace(
        explore=lambda *shown, **options: calls.append(("explore", shown, options)),
        save_page=lambda shown, path, **head: calls.append(("save_page", (shown, path), head)) or 1,
        make_widget=lambda *shown, **options: calls.append(("make_widget", shown, options)),
    )
    monkeypatch.setattr(EntryPoint, "load", lambda _: own)
    trace, other = (Trace.from_attentions([torch.eye(2).expand(1, 1, 2, 2)]) for _ in range(2))
    trace.explore(port=1)
    assert trace.save_page(tmp_path / "page.html", layer=0, head=0) == 1
    trace.widget(other, height=300)
    assert calls == [
        ("explore", (trace,), {"port": 1}),
        ("save_page", (trace, tmp_path / "page.html"), {"layer": 0, "head": 0}),
        ("make_widget", (trace, other), {"height": 300}),
    ]


def test_without_a_viewer_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "entry_points", lambda group: [])
    with pytest.raises(MissingExtraError, match=viewer.GROUP):
        Trace.from_attentions([torch.eye(2).expand(1, 1, 2, 2)]).explore()
