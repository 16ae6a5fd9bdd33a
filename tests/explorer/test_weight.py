"""What the explorer's page weighs, and whom it asks for the rest."""

from __future__ import annotations

import gzip
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Request

from attnscope.explorer import launch
from tests.explorer.browser import needs_chromium, new_tab, opened, wait_until_ready
from tests.explorer.pages import state, until
from tests.explorer.serving import Handle

STATIC = Path(launch.__file__).parent / "static"
FIRST = {"explorer.css", "page.js", "page_shared.js"}
"""The files that the page loads before its first heatmap."""

LOADED = """() => {
  const [{startTime: drawn}] = performance.getEntriesByName("first-heatmap");
  const files = performance.getEntriesByType("resource").filter(({name}) => /\\.(js|css)$/.test(name));
  return files.map(({name, startTime}) => [name.split("/").at(-1), startTime < drawn]);
}"""


def weigh(*names: str) -> int:
    """The bytes of some files, compressed."""
    return sum(len(gzip.compress((STATIC / name).read_bytes(), 9)) for name in names)


@pytest.mark.parametrize(
    ("names", "kilobytes"),
    [
        (("index.html", *FIRST), 96),  # before the first heatmap
        (("index.html", *FIRST, "page_later.js"), 122),
        (("loader.js", "explorer.js", "explorer.css"), 122),  # in a notebook; a saved page has no loader
        (("survey.html", "survey.js", "survey.css"), 24),
        (("watch.html", "watch.js", "watch.css"), 24),
        (("steps.html", "steps.js", "steps.css"), 192),  # 160 of them are numbers of a trained model
    ],
)
def test_what_a_page_loads_is_small(names: tuple[str, ...], kilobytes: int) -> None:
    assert weigh(*names) <= kilobytes * 1024


@needs_chromium
def test_the_page_asks_nobody_but_its_server(browser: Browser, small: Handle) -> None:
    hosts = set()

    def follow(request: Request) -> None:
        hosts.add(urlsplit(request.url).netloc)

    with opened(browser, "about:blank", ready=False, fresh=True) as page:
        page.on("request", follow)
        page.goto(small.url)
        wait_until_ready(page)
        page.wait_for_load_state("networkidle")
        until(page, lambda: len(page.evaluate(LOADED)) > len(FIRST), "what is loaded when the page is idle")
        files = page.evaluate(LOADED)
    assert hosts - {""} == {small.host}
    assert {name for name, first in files if first} == FIRST
    assert {name for name, first in files if not first} == {"page_later.js"}


@needs_chromium
def test_a_script_that_cannot_be_loaded_is_told(browser: Browser, small: Handle) -> None:
    with new_tab(browser, fresh=True) as page:
        page.route("**/page_later.js", lambda route: route.abort())
        page.goto(small.url)
        wait_until_ready(page)
        page.keyboard.press("t")
        until(page, lambda: "could not be loaded" in page.locator(".notice").inner_text(), "the notice")
        assert state(page)["view"] == "map"
        page.unroute("**/page_later.js")
        page.reload()
        wait_until_ready(page)
        page.keyboard.press("t")
        until(page, lambda: page.locator(".text-view").is_visible(), "the text")
