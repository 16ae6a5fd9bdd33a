"""The place in the map: an address names it in every window, other views keep it, and undo and Back return to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.explorer.browser import needs_chromium
from tests.explorer.pages import MAP, change, drawn, focus_map, fragment, shown, state, until, visible
from tests.explorer.serving import Handle, serving
from tests.explorer.synthetic import random_head

pytestmark = needs_chromium

LENGTH = 108
SIZES = {"projector": (1280, 720), "old projector": (1024, 768), "phone": (390, 844)}


@pytest.fixture(scope="module")
def server() -> Iterator[Handle]:
    with serving(random_head(LENGTH).trace(), page=True) as handle:
        yield handle


def address(page: Page, query: str) -> str:
    return f"{page.url.partition('#')[0]}{fragment(page).partition('?')[0]}?{query}"


def wheel(page: Page, *turns: int) -> None:
    box = page.locator("canvas.map-heat >> nth=0").bounding_box()
    assert box
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    for turn in turns:
        page.mouse.wheel(0, turn)
    drawn(page)


@pytest.mark.parametrize("size", SIZES)
def test_a_linked_pin_is_in_view_in_every_window(browser: Browser, server: Handle, size: str) -> None:
    width, height = SIZES[size]
    with shown(browser, server.url, width=width, height=height) as page:
        for query in ("pin=q50,k1", "c=100,100&z=40&pin=q50,k1", "z=30&pin=q50,k1"):
            link = address(page, query)
            page.goto("about:blank")
            page.goto(link)
            drawn(page)
            seen = visible(page)
            assert seen["query"][0] <= 50 < seen["query"][1], (query, seen)
            assert seen["key"][0] <= 1 < seen["key"][1], (query, seen)
        change(page, centre=None, zoom=None)
        drawn(page)
        assert visible(page) == {"query": [0, LENGTH], "key": [0, LENGTH]}, "opens whole, not cropped"


def test_other_views_keep_the_place_and_reveal_what_was_pinned_there(browser: Browser, server: Handle) -> None:
    with shown(browser, server.url, width=1280, height=720) as page:
        change(page, centre={"query": 80, "key": 60}, zoom=24)
        drawn(page)
        before = visible(page)
        focus_map(page)
        for key in ("t", "m", "h", "m"):
            page.keyboard.press(key)
            page.wait_for_timeout(100)
        drawn(page)
        assert [state(page)[name] for name in ("centre", "zoom", "view")] == [{"query": 80, "key": 60}, 24, "map"]
        assert visible(page) == before
        page.keyboard.press("h")
        change(page, pinQuery=3, pinKey=2)
        page.keyboard.press("m")
        drawn(page)
        seen = visible(page)
        assert seen["query"][0] <= 3 < seen["query"][1]
        assert seen["key"][0] <= 2 < seen["key"][1]
        assert state(page)["zoom"] == 24


def test_undo_takes_back_what_was_done_and_back_stays_in_the_explorer(browser: Browser, server: Handle) -> None:
    with shown(browser, server.url, width=1280, height=720) as page:
        first = page.url
        wheel(page, -100, -100, -100)
        zoomed = until(page, lambda: state(page)["zoom"], "the zoom")
        page.wait_for_timeout(600)
        page.go_back()
        until(page, lambda: state(page)["zoom"] is None, "the whole matrix")
        assert page.url == first
        page.go_forward()
        until(page, lambda: state(page)["zoom"], "the zoom")
        focus_map(page)
        for key in ("x", "k"):
            page.keyboard.press(key)
        assert (state(page)["channel"], state(page)["hideSink"]) == ("max", True)
        page.keyboard.press("Control+z")
        assert (state(page)["channel"], state(page)["hideSink"]) == ("max", False)
        page.keyboard.press("Control+z")
        page.keyboard.press("Control+z")
        now = state(page)
        assert (now["channel"], now["zoom"], now["centre"]) == ("both", None, None)
        page.keyboard.press("Control+Shift+Z")
        assert abs(state(page)["zoom"] / zoomed - 1) < 1e-3


def test_a_copied_link_has_the_place(browser: Browser, server: Handle) -> None:
    with shown(browser, server.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        focus_map(page)
        page.keyboard.press("y")
        page.wait_for_selector(".notice:not([hidden])")
        link = page.evaluate("navigator.clipboard.readText()")
        place = page.evaluate(f"{MAP}.getPlace()")
        assert f"c={place['centre']['query']:.4g},{place['centre']['key']:.4g}&z=" in link
