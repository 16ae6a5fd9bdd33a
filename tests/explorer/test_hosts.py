"""The explorer where it is not alone: in a cell of a notebook, two on one page, in a saved file, and gone again.

The cell here has a model of its own, which asks the server that the page came from; a real notebook is tested apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.explorer.browser import needs_chromium
from tests.explorer.pages import STORE, drawn, focus_map, looks, ready, shown, small_served, state, until
from tests.explorer.serving import Handle

pytestmark = needs_chromium

# What anywidget would give a view, as far as the explorer uses it; its messages go to the server of this page.
OPEN_CELL = """async ([width, height]) => {
  const {default: {render}} = await import(location.origin + "/explorer.js");
  const css = await (await fetch("explorer.css")).text();
  const values = {height, state: "#1/-/L0H0/map"}, listeners = new Map();
  const tell = (name, ...said) => [...(listeners.get(name) ?? [])].forEach((listener) => listener(...said));
  const model = {
    get: (name) => values[name],
    set: (name, value) => { values[name] = value; tell("change:" + name); },
    save_changes: () => undefined,
    on: (name, listener) => listeners.set(name, new Set([...(listeners.get(name) ?? []), listener])),
    off: (name, listener) => listeners.get(name)?.delete(listener),
    send: async ({id, path, body}) => {
      if (path === undefined) return;
      cell.asked.push(path);
      const headers = {authorization: "Bearer " + localStorage.getItem("attnscope.token")};
      const answer = await fetch("api/1/" + path, body === undefined ? {headers} : {
        method: "POST", body: JSON.stringify(body), headers: {...headers, "content-type": "application/json"},
      });
      tell("msg:custom", {id, status: answer.status, more: false}, [await answer.arrayBuffer()]);
    },
  };
  const el = document.createElement("div");
  el.id = "cell";
  el.style.width = `${width}px`;
  document.body.prepend(el);
  const cell = window.cell = {el, values, asked: [], listeners};
  cell.leave = render({model, el, css});
}"""
INSIDE = "document.querySelector('#cell > div').shadowRoot.querySelector('.explorer')"
MAP_IN_CELL = "#cell .map"


@pytest.fixture(scope="module")
def served() -> Iterator[Handle]:
    with small_served() as handle:
        yield handle


@contextmanager
def beside_a_cell(browser: Browser, handle: Handle, width: int = 1200, **options: Any) -> Iterator[Page]:
    """The explorer's own page, with a notebook's cell on it."""
    with shown(browser, handle.url, **options) as page:
        page.evaluate(OPEN_CELL, [width, 600])
        # By a locator: a handle of an element would keep it alive.
        page.locator(f"{MAP_IN_CELL}[data-state=ready]").wait_for(state="attached")
        yield page


def cell_state(page: Page) -> dict[str, Any]:
    return page.evaluate(f"{INSIDE}.attnscope.store.get()")


def test_two_explorers_on_a_page_each_hear_their_own_keys(browser: Browser, served: Handle) -> None:
    with beside_a_cell(browser, served) as page:
        before = state(page)
        page.focus(MAP_IN_CELL)
        for key in ("}", "l", "."):
            page.keyboard.press(key)
        assert (cell_state(page)["layer"], cell_state(page)["scale"]) == (1, "log")
        assert cell_state(page)["pinQuery"] is not None
        assert state(page) == before, "the page's own explorer did not have the keyboard"
        of_cell = cell_state(page)
        focus_map(page)
        page.keyboard.press("}")
        assert state(page)["layer"] == 1
        assert cell_state(page) == of_cell
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("{")
        assert state(page)["layer"] == 0, "with nothing focused, keys are the page's and not the cell's"


def test_a_cell_keeps_its_address_in_the_model_and_follows_it(browser: Browser, served: Handle) -> None:
    with beside_a_cell(browser, served) as page:
        hash_before = page.evaluate("location.hash")
        page.focus(MAP_IN_CELL)
        page.keyboard.press("}")
        until(page, lambda: "/L1H0/" in page.evaluate("cell.values.state"), "the address in the model")
        assert page.evaluate("location.hash") == hash_before
        assert page.title().startswith("L0H0"), "the page's own title is of its own explorer"


@pytest.mark.slow
def test_a_plain_wheel_scrolls_the_notebook_and_one_with_control_zooms(browser: Browser, served: Handle) -> None:
    with beside_a_cell(browser, served) as page:
        box = page.locator(MAP_IN_CELL).bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.wheel(0, -100)
        page.wait_for_timeout(100)
        assert cell_state(page)["zoom"] is None
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        until(page, lambda: cell_state(page)["zoom"] is not None, "the zoom")


@pytest.mark.slow
def test_a_cell_is_as_light_or_dark_as_its_notebook_whatever_the_system_says(browser: Browser, served: Handle) -> None:
    # The paper of the page, and how many points of the map are painted in the ink of each theme.
    colours = f"""() => {{
      const canvas = {INSIDE}.querySelector(".map-overlay");
      const {{data}} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const points = new Uint32Array(data.buffer);
      const painted = (red, green, blue) => {{
        const colour = (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
        return points.filter((point) => point === colour).length;
      }};
      return [getComputedStyle({INSIDE}).backgroundColor, painted(27, 31, 36) > 50, painted(230, 233, 236) > 50];
    }}"""
    with beside_a_cell(browser, served) as page:
        page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        until(page, lambda: page.evaluate(colours) == ["rgb(20, 23, 26)", False, True], "a dark cell")
        assert page.get_attribute("#explorer", "data-theme") == "light"
        page.evaluate("document.body.dataset.jpThemeLight = 'true'")
        until(page, lambda: page.evaluate(colours) == ["rgb(255, 255, 255)", True, False], "a light cell")


@pytest.mark.slow
def test_the_page_follows_the_system_between_light_and_dark(browser: Browser, served: Handle) -> None:
    paper = "getComputedStyle(document.querySelector('.frame')).backgroundColor"
    with shown(browser, served.url, color_scheme="dark") as page:
        assert page.evaluate(paper) == "rgb(20, 23, 26)"
        looks(page, "light")
        assert page.evaluate(paper) == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_a_narrow_cell_in_a_wide_window_is_laid_out_as_a_narrow_page(browser: Browser, served: Handle) -> None:
    with beside_a_cell(browser, served, width=500) as page:
        assert page.is_visible("#cell .head-selects")
        assert not page.is_visible("#cell .head-grid")
        assert page.is_visible("#explorer .head-grid"), "the window has not become narrower"
        wide = page.evaluate(f"{INSIDE}.scrollWidth - {INSIDE}.clientWidth")
        assert wide <= 0


# Only weak hold of what the cell has made: its element, maps, canvases, panels and store.
HOLD_WEAKLY = f"""() => {{
  const root = {INSIDE};
  const parts = [root, root.attnscope.map, root.attnscope.store, root.attnscope.transport,
                 ...root.querySelectorAll("canvas, .inspector, .navigator, .centre, .text-view, .heads, dialog")];
  window.held = parts.map((part) => [part.className ?? part.constructor.name, new WeakRef(part)]);
  return parts.length;
}}"""


@pytest.mark.slow
def test_an_explorer_that_leaves_takes_everything_with_it(browser: Browser, served: Handle) -> None:
    with beside_a_cell(browser, served) as page:
        page.focus(MAP_IN_CELL)
        for key in (".", ">", "r", "t", "h", "m", "c", "c", "k", "?"):
            page.keyboard.press(key)
            page.wait_for_timeout(150)
        page.keyboard.press("Escape")
        assert page.evaluate(HOLD_WEAKLY) > 8
        page.evaluate("() => { cell.leave(); cell.leave = null; }")
        asked = page.evaluate("cell.asked.length")
        page.wait_for_timeout(3000)
        assert page.evaluate("cell.asked.length") == asked, "nothing is asked any more"
        assert page.evaluate("[...cell.listeners.values()].every((those) => those.size === 0)")
        assert page.evaluate("document.querySelectorAll('#cell *').length") == 0
        page.evaluate("() => { cell.el.remove(); window.cell = null; }")
        browser_itself = page.context.new_cdp_session(page)

        def alive() -> list[str]:
            browser_itself.send("HeapProfiler.collectGarbage")
            return page.evaluate("held.filter(([, part]) => part.deref()).map(([name]) => name)")

        until(page, lambda: not alive(), "the garbage to be collected", seconds=10)
        focus_map(page)
        page.keyboard.press("}")
        assert state(page)["layer"] == 1, "the other explorer goes on"


HELD = [[0, 1], [1, 0], [1, 3]]


@contextmanager
def saved_page(browser: Browser, handle: Handle) -> Iterator[Page]:
    """A page whose session says that it was saved with three heads."""

    def as_saved(route: Route) -> None:
        session = route.fetch().json()
        route.fulfill(json={**session, "has_model": False, "file": {"heads": HELD}})

    with shown(browser, handle.url) as page:
        page.route("**/api/1/session", as_saved)
        page.reload()
        ready(page)
        drawn(page)
        yield page


def test_a_saved_page_shows_the_heads_it_holds_and_steps_over_the_others(browser: Browser, served: Handle) -> None:
    with saved_page(browser, served) as page:
        focus_map(page)
        place = lambda: (state(page)["layer"], state(page)["head"])  # noqa: E731
        assert place() == (0, 1), "the address named a head that is not there"
        page.keyboard.press("}")
        assert place() == (1, 0)
        visited = {place()}
        for key in "]]][[[":  # along the ranking, to both of its ends
            page.keyboard.press(key)
            visited.add(place())
        assert visited == {(layer, head) for layer, head in HELD}
        page.evaluate(f"{STORE}.set({{layer: 0, head: 3}})")
        assert place() == (0, 1)


@pytest.mark.slow
def test_heads_that_a_saved_page_lacks_say_so_and_cannot_be_chosen(browser: Browser, served: Handle) -> None:
    with saved_page(browser, served) as page:
        buttons = page.locator(".head-grid button")
        lacking = page.locator(".head-grid button[aria-disabled=true]")
        assert lacking.count() == buttons.count() - len(HELD)
        assert "not in this file" in (lacking.nth(0).get_attribute("title") or "")
        before = state(page)
        lacking.nth(0).click(force=True)
        assert state(page) == before
        page.click(".head-grid button[data-layer='1'][data-head='3']")
        assert (state(page)["layer"], state(page)["head"]) == (1, 3)
        page.set_viewport_size({"width": 500, "height": 700})
        offered = page.locator(".head-selects select").nth(1).locator("option").all_inner_texts()
        assert offered == ["0", "3"]


@pytest.mark.slow
def test_a_saved_page_says_that_it_has_no_model(browser: Browser, served: Handle) -> None:
    with saved_page(browser, served) as page:
        button = page.get_by_role("button", name="Type a sentence")
        assert button.is_disabled()
        assert json.dumps(button.get_attribute("title")) == '"A saved page has no model to run."'
        focus_map(page)
        page.keyboard.press("i")
        until(page, lambda: "no model to run" in page.inner_text(".notice"), "words")
