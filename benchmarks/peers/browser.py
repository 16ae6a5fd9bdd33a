"""How long a page takes to its first picture, in a headless Chromium: run as a program of its own, to be watched.

In: a page, how to tell that it shows something, seconds to wait at most, and scripts that are answered from this
machine. Out: one line of JSON. Does not know: who made the page. Playwright is for development and imported here alone.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from attnscope.errors import SettingError

FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
"""The second begins when the first has been painted."""
NODES = "() => document.getElementsByTagName('*').length"
PAUSE = 50  # milliseconds between two looks
COUNT_PAINTINGS = """
window.paintings = 0;
for (const name of ["putImageData", "drawImage", "fill", "fillRect", "stroke"]) {
  const own = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...given) {
    window.paintings += 1;
    return own.apply(this, given);
  };
}
"""
"""Runs before the page's own scripts: a canvas does not say whether anything has been painted on it."""


def chromium() -> str:
    """The path of a Chromium, or an error that says how to get one."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise SettingError(
            "peers: pages are timed in Chromium, which is not on the path; install it, or leave them out"
        )
    return found


def playwright() -> Any:
    """The module that drives it, or an error that says how to get it."""
    try:
        return import_module("playwright.sync_api")
    except ModuleNotFoundError as error:
        raise SettingError(
            "peers: pages are timed through playwright; install it with: pip install playwright"
        ) from error


def first_picture(page: Path, shown: str, seconds: float, scripts: Mapping[str, str]) -> dict[str, Any]:
    """Seconds until the expression `shown` is true and painted, or None; and how many elements there are then."""
    driver = playwright()
    with driver.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        opened = browser.new_page(viewport={"width": 1600, "height": 1000})
        opened.add_init_script(COUNT_PAINTINGS)
        for address, file in scripts.items():
            opened.route(address, _answer_with(file))
        start = time.perf_counter()
        opened.goto(page.absolute().as_uri(), wait_until="commit", timeout=1e3 * seconds)
        while not opened.evaluate(f"() => {shown}"):
            if time.perf_counter() - start > seconds:
                return {"seconds": None}
            opened.wait_for_timeout(PAUSE)
        opened.evaluate(TWO_FRAMES)
        spent = time.perf_counter() - start
        return {"seconds": spent if spent <= seconds else None, "nodes": opened.evaluate(NODES)}


def _answer_with(file: str) -> Callable[[Any], None]:
    return lambda route: route.fulfill(path=file, content_type="text/javascript")


if __name__ == "__main__":
    answer = first_picture(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4]))
    sys.stdout.write(json.dumps(answer) + "\n")
