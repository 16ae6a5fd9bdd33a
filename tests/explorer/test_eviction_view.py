"""Evicted keys are hatched in the map and struck through in the text, and the panel has the server's numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from attnscope.cache import POLICIES
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import change, drawn, fragment, shown, state, until
from tests.explorer.picture import sampled, view_of
from tests.explorer.reading import PAINTED
from tests.explorer.serving import TEXT, Handle

pytestmark = needs_chromium

CONTEXT, TOKENS = 36, len(TEXT)  # a character each
HATCH = {"light": {(0xD3, 0xD8, 0xDE), (0xF4, 0xF6, 0xF8)}, "dark": {(0x5B, 0x64, 0x6E), (0x3A, 0x41, 0x49)}}
"""Lines and ground."""


def is_hatched(page: Page, query: int, key: int, theme: str = "light") -> bool:
    """Whether the pixels of a cell have the colours of the hatch; those of its lines are smoothed."""
    view = view_of(page, TOKENS, TOKENS)
    size = view.zoom * view.scale
    left, top = (key - view.key) * size, (query - view.query) * size
    points = [(int(left + x), int(top + y)) for x in range(2, int(size) - 1) for y in range(2, int(size) - 1)]
    colours = [tuple(map(int, colour)) in HATCH[theme] for colour in sampled(page, "heat", points)]
    return sum(colours) > len(colours) / 3


def evicted_keys(handle: Handle, trace: str, query: str) -> tuple[list[int], dict[str, Any]]:
    found = handle.get(f"/api/1/{trace}/1/2/evicted?{query}").json
    keys, at = [], 0
    for run, length in enumerate(found["runs"]):
        keys += range(at, at + length) if run % 2 else []
        at += length
    return keys, found


def lost_weights(page: Page) -> list[str]:
    text = until(page, lambda: page.locator(".eviction p").last.inner_text(), "the numbers of the panel")
    return re.findall(r"[<\d.]+%", text)


def test_what_is_evicted_is_hatched_struck_through_and_measured(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        trace = state(page)["trace"]
        keys, found = evicted_keys(small, trace, "by=received&keep=25")
        assert (found["context"], found["kept"], len(keys)) == (CONTEXT, 9, 27)
        change(page, layer=1, head=2, eviction={"by": "received", "keep": 25, "context": None})
        drawn(page)
        gone, kept = keys[3], next(key for key in range(CONTEXT) if key not in keys)
        until(page, lambda: is_hatched(page, 60, gone), "the hatch")
        assert not is_hatched(page, 60, kept)
        assert not is_hatched(page, CONTEXT - 1, gone), "queries of the context come before the eviction"
        assert "kv=received,25" in until(page, lambda: "kv=" in fragment(page) and fragment(page), "the address")
        assert [float(text.strip("<%")) for text in lost_weights(page)] == [
            pytest.approx(100 * found["lost"], abs=0.06)
        ]
        change(page, view="text")
        until(page, lambda: page.evaluate(PAINTED, "evicted"), "lines through words")
        struck = {place + at for text, place, _ in page.evaluate(PAINTED, "evicted") for at in range(len(text))}
        assert len(struck) >= len(keys) - 6  # line ends are shown as one character
        assert min(struck) == min(keys)
        assert max(struck) < CONTEXT + 6
        change(page, eviction=None)
        until(page, lambda: not page.evaluate(PAINTED, "evicted"), "the text without lines")


@pytest.mark.slow
@pytest.mark.parametrize("theme", HATCH)
def test_the_panel_and_the_ask_box_evict(browser: Browser, small: Handle, theme: str) -> None:
    with shown(browser, small.url, color_scheme=theme) as page:
        trace = state(page)["trace"]
        change(page, layer=1, head=2)
        policy = page.get_by_label("Eviction policy")
        until(page, lambda: policy.is_visible(), "the panel")
        assert policy.locator("option").all_inner_texts()[1:] == list(POLICIES)
        page.keyboard.press("Control+k")
        page.keyboard.type("keep 50% by rec")
        until(page, lambda: page.locator(".ask-option").count() == 2, "both policies")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert state(page)["eviction"] == {"by": "recent", "keep": 50, "context": None}
        until(page, lambda: is_hatched(page, 60, 9, theme), "the hatch")
        assert not is_hatched(page, 60, 3, theme)
        page.get_by_label("Percent of the pairs to keep").fill("75")
        page.get_by_label("Evict after this token").fill("40")
        page.get_by_label("Evict after this token").press("Enter")
        assert state(page)["eviction"] == {"by": "recent", "keep": 75, "context": 40}
        change(page, pinQuery=64)
        place = "by=recent&keep=75&context=40"
        lost = small.get(f"/api/1/{trace}/1/2/lost/64?{place}").json["lost"]
        until(page, lambda: "of query 64" in page.locator(".eviction p").last.inner_text(), "the pinned query")
        wanted = [lost, evicted_keys(small, trace, place)[1]["lost"]]
        assert [float(text.strip("<%")) for text in lost_weights(page)] == pytest.approx(
            [100 * weight for weight in wanted], rel=0.05, abs=0.06
        )
        policy.select_option("keep all pairs")
        assert state(page)["eviction"] is None
        until(page, lambda: not is_hatched(page, 60, 9, theme), "the map without hatch")
