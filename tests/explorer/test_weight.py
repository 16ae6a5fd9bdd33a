"""What the explorer's page weighs, and whom it asks for the rest."""

from __future__ import annotations

import gzip
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Request

from attnscope.explorer import launch
from tests.explorer.browser import needs_chromium, opened, wait_until_ready
from tests.explorer.serving import Handle

STATIC = Path(launch.__file__).parent / "static"


def test_the_page_has_at_most_80_kilobytes() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in STATIC.iterdir()}
    assert {"index.html", "explorer.js", "explorer.css"} <= set(sizes)
    for page in ("survey", "watch"):  # a page of their own
        own = {name: sizes.pop(name) for name in (f"{page}.html", f"{page}.js", f"{page}.css")}
        assert sum(own.values()) <= 24 * 1024, own
    steps = {name: sizes.pop(name) for name in ("steps.html", "steps.js", "steps.css")}
    assert sum(steps.values()) <= 128 * 1024, steps  # 100 of them are numbers of a trained model
    assert sum(sizes.values()) <= 80 * 1024, sizes


@needs_chromium
def test_the_page_asks_nobody_but_its_server(browser: Browser, small: Handle) -> None:
    hosts, paths = set(), set()

    def follow(request: Request) -> None:
        hosts.add(urlsplit(request.url).netloc)
        paths.add(urlsplit(request.url).path)

    with opened(browser, "about:blank", ready=False, fresh=True) as page:
        page.on("request", follow)
        page.goto(small.url)
        wait_until_ready(page)
        page.wait_for_load_state("networkidle")
    assert hosts - {""} == {small.host}
    others = {path for path in paths if any(page in path for page in ("survey", "watch", "steps"))}
    assert not others, "these pages come when one is opened"
