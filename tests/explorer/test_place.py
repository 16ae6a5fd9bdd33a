"""The place in the map: an address names it in every window, other views keep it, and undo and Back return to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.recording import Trace
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.heads_page import heads_shown, pixels
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


def test_two_short_texts_beside_each_other_are_shown_whole(browser: Browser, server: Handle) -> None:
    with shown(browser, server.url, width=1280, height=720) as page:
        change(page, compare={"trace": "", "layer": 0, "head": 0, "mode": "side"})
        page.wait_for_selector(".beside .map[data-state=ready]")
        drawn(page)
        assert visible(page) == {"query": [0, LENGTH], "key": [0, LENGTH]}


def minimap_pixels(page: Page) -> int:
    """Pixels of the corner of the plot that the canvas above the heatmap covers."""
    return page.evaluate("""() => {
      const [heat, overlay] = document.querySelectorAll("#explorer .map canvas");
      const [left, top] = [parseFloat(heat.style.left), parseFloat(heat.style.top)];
      const pen = overlay.getContext("2d"), side = 60;
      const { data } = pen.getImageData(left + parseFloat(heat.style.width) - side - 12, top + 12, side, side);
      return data.filter((_, at) => at % 4 === 3 && data[at] === 255).length;
    }""")


def test_a_cropped_map_says_so_by_the_whole_in_its_corner(browser: Browser, server: Handle) -> None:
    with shown(browser, server.url, width=1280, height=720) as page:
        assert minimap_pixels(page) == 0
        whole = page.evaluate(f"{MAP}.getPlace()")
        change(page, centre=whole["centre"], zoom=1.3 * whole["zoom"])
        drawn(page)
        assert minimap_pixels(page) > 3000


# Runs before the page: what is written on a canvas can be read nowhere else.
HEAR = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  window.written.push(text);
  return write.call(this, text, ...place);
};
"""
WEIGHT_WRITTEN = "window.written.findLast(text => text.includes(' gives '))"


def test_in_presentation_size_everything_is_larger_and_the_pointer_is_where_it_points(
    browser: Browser, small: Handle
) -> None:
    with opened(browser, "about:blank", ready=False, width=1280, height=720) as page:
        page.add_init_script(HEAR)
        page.goto(small.url)
        drawn(page)
        page.evaluate("window.written.length = 0")
        for large in (False, True):
            change(page, large=large)
            drawn(page)
            heat = page.locator("canvas.map-heat")
            box = heat.bounding_box()
            assert box
            assert heat.get_attribute("width") == str(round(box["width"])), "as sharp as the screen"
            seen = visible(page)
            side = min(box["width"], box["height"])
            page.mouse.move(box["x"] + 0.25 * side, box["y"] + 0.25 * side)
            cell = until(page, lambda: page.evaluate(f"{MAP}.hover"), "the cell under the pointer")
            assert abs(cell["query"] - 0.25 * seen["query"][1]) <= 1
            assert cell["query"] == cell["key"]
            said = until(page, lambda: page.evaluate(WEIGHT_WRITTEN), "the weight under the pointer")
            assert re.fullmatch("\u2068.+\u2069 gives <?[\\d.]+% to \u2068.+\u2069", said)
            page.evaluate("window.written.length = 0")
            page.mouse.move(0, 0)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        size = page.evaluate("document.querySelector('.bars button').getBoundingClientRect().height")
        change(page, large=False)
        assert size == 1.5 * page.evaluate("document.querySelector('.bars button').getBoundingClientRect().height")
        page.keyboard.press("p")
        assert state(page)["large"]
        until(page, lambda: "large=1" in fragment(page), "the address")
        page.click("summary:has-text('View')")
        page.click("button:has-text('Presentation size')")
        assert not state(page)["large"]


def test_in_presentation_size_the_map_of_a_model_with_many_heads_is_in_the_window(browser: Browser) -> None:
    torch.manual_seed(0)
    weights = {f"layer {layer}": torch.rand(1, 9, 40, 40).tril().softmax(-1).tril() for layer in range(30)}
    library = Library()
    library.add(Trace.from_attentions(weights), name="many")
    with (
        serving(library, page=True) as handle,
        shown(browser, f"{handle.url}#1/-/L3H2/map?pin=q30,k1&large=1", width=1280, height=720) as page,
    ):
        drawn(page)
        box = page.locator("canvas.map-heat").bounding_box()
        assert box
        assert visible(page) == {"query": [0, 40], "key": [0, 40]}
        assert 200 < box["height"] < box["y"] + box["height"] < 720


def test_the_pinned_pair_is_marked_on_every_small_picture(browser: Browser, small: Handle) -> None:
    with heads_shown(browser, small) as page:
        before = pixels(page).astype(int)
        change(page, pinQuery=60, pinKey=10)
        after = pixels(page).astype(int)
        changed = np.argwhere((before != after).any(-1))
        orange = np.argwhere((after == [0xD5, 0x5E, 0x00]).all(-1))
        assert len(orange) >= 6 * 8
        assert len(changed) < 6 * 200, "nothing else changes"


def test_a_copied_link_has_the_place(browser: Browser, server: Handle) -> None:
    with shown(browser, server.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        focus_map(page)
        page.keyboard.press("y")
        page.wait_for_selector(".notice:not([hidden])")
        link = page.evaluate("navigator.clipboard.readText()")
        place = page.evaluate(f"{MAP}.getPlace()")
        assert f"c={place['centre']['query']:.4g},{place['centre']['key']:.4g}&z=" in link
