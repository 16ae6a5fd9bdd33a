"""Each view in pictures, and what can be said of them without eyes: nothing overflows, is cut or is tiny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.explorer.browser import needs_chromium, opened, slow_cases
from tests.explorer.load_server import synthetic
from tests.explorer.pages import looks, shown, until
from tests.explorer.scenes import scenes, server_stopped, trace_elsewhere
from tests.explorer.serving import Handle, serving

pytestmark = needs_chromium
SCREENS: dict[str, dict[str, Any]] = {
    "wide": {"width": 1440, "height": 900},
    "small": {"width": 600, "height": 800},
    "phone": {"width": 390, "height": 640},
}

# Elements whose text does not fit in themselves, but for those that say so with an ellipsis or can be scrolled.
CUT = """() => [...document.querySelectorAll("#explorer *")].filter((one) => {
  if (!one.checkVisibility() || one.closest(".visually-hidden") || !one.innerText?.trim()) return false;
  const style = getComputedStyle(one);
  const dots = style.textOverflow === "ellipsis" && style.display !== "flex";
  const hides = style.overflowX === "hidden" && !dots;
  return hides && one.scrollWidth > one.clientWidth + 1;
}).map((one) => one.tagName + "." + one.className + ": " + one.innerText.slice(0, 60))"""

# WCAG 2.2, 2.5.8: 24 by 24 CSS pixels for whatever is pressed.
TINY = """() => [...document.querySelectorAll("button, input, select, textarea, summary")].filter((one) => {
  // A cell of the grid of heads may be smaller: the Ask box and the ranking open the same heads.
  if (!one.checkVisibility() || one.closest(".visually-hidden, .head-grid")) return false;
  const target = one.type === "checkbox" ? one.closest("label") ?? one : one;
  const {width, height} = target.getBoundingClientRect();
  return width < 23.5 || height < 23.5;
}).map((one) => one.outerHTML.slice(0, 80))"""

# Texts that stand on each other: lines of them, as far as what scrolls shows them, that overlap by more than a hair.
COLLIDING = """() => {
  const shown = (line, one) => {
    let {left, top, right, bottom} = line;
    for (let up = one.parentElement; up; up = up.parentElement) {
      if (getComputedStyle(up).overflow === "visible") continue;
      const frame = up.getBoundingClientRect();
      [left, top] = [Math.max(left, frame.left), Math.max(top, frame.top)];
      [right, bottom] = [Math.min(right, frame.right), Math.min(bottom, frame.bottom)];
    }
    return {left, top, right, bottom, one};
  };
  const lines = [...document.querySelectorAll("#explorer *")].filter((one) =>
    one.checkVisibility() && !one.closest(".visually-hidden, dialog, .notice, .map, option, thead")
      && one.childElementCount === 0 && one.textContent.trim() && one.tagName !== "CANVAS"
  ).flatMap((one) => [...one.getClientRects()].map((line) => shown(line, one)));
  return lines.flatMap((first, at) => lines.slice(at + 1).filter((second) => first.one !== second.one
    && Math.min(first.right, second.right) - Math.max(first.left, second.left) > 3
    && Math.min(first.bottom, second.bottom) - Math.max(first.top, second.top) > 6
  ).map((second) => first.one.textContent.slice(0, 40) + " | " + second.one.textContent.slice(0, 40)));
}"""


def list_faults(page: Page, folder: Path, name: str) -> dict[str, Any]:
    """Keep pictures in light and in dark, and say what is wrong; sizes are the same in both."""
    for colours in ("dark", "light"):
        looks(page, colours)
        page.screenshot(path=folder / f"{name}, {colours}.png", full_page=True)
        assert (folder / f"{name}, {colours}.png").stat().st_size > 5000
    wrong = {
        "wider than the window by": max(0, page.evaluate("document.scrollingElement.scrollWidth - innerWidth")),
        "cut": page.evaluate(CUT),
        "too small to press": page.evaluate(TINY),
        "on each other": page.evaluate(COLLIDING),
    }
    return {what: found for what, found in wrong.items() if found}


@pytest.mark.parametrize("screen", [*slow_cases("wide", "small"), "phone"])
def test_every_view_fits_its_window(browser: Browser, model_server: Handle, tmp_path: Path, screen: str) -> None:
    with shown(browser, model_server.url, **SCREENS[screen]) as page:
        wrong = {scene: list_faults(page, tmp_path, f"{screen} {scene}") for scene in scenes(page)}
    assert {scene: found for scene, found in wrong.items() if found} == {}


@pytest.mark.parametrize("screen", ["wide", *slow_cases("small", "phone")])
def test_what_is_said_of_trouble_fits_its_window(
    browser: Browser, model_server: Handle, tmp_path: Path, screen: str
) -> None:
    with trace_elsewhere(browser, model_server, **SCREENS[screen]) as page:
        assert list_faults(page, tmp_path, f"{screen} elsewhere") == {}
        said = page.inner_text("main")
        assert "3 layers, 12 heads" in said
    with server_stopped(browser, **SCREENS[screen]) as page:
        assert list_faults(page, tmp_path, f"{screen} stopped") == {}
        assert "The server does not answer" in page.inner_text(".banner")
        said = page.inner_text(".banner")
        assert "start it again with the same command and open the address that it prints" in said


@pytest.mark.slow
def test_while_levels_are_built_a_preview_is_shown_and_says_so(browser: Browser, tmp_path: Path) -> None:
    watch = """window.said = new Set();
      const fill = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.said.add(text);
        fill.call(this, text, ...rest);
      };"""
    with (
        serving(synthetic(65_536), page=True) as handle,
        opened(browser, "about:blank", ready=False, **SCREENS["wide"]) as page,
    ):
        page.add_init_script(watch)
        page.goto(handle.url)
        page.wait_for_selector(".map[data-state=preview]", state="attached")
        assert list_faults(page, tmp_path, "building") == {}
        until(
            page,
            lambda: page.evaluate("[...window.said].some((text) => /preview|sampled|building/i.test(text))"),
            "words",
        )
