"""Measures the time to the first picture of a page in a headless Chromium; run as a script.

It prints one line of JSON. Playwright is a development dependency and imported only here.
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
"""The second frame starts when the first is painted."""
NODES = "() => document.getElementsByTagName('*').length"
POLL_MILLISECONDS = 50
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
"""Runs before the scripts of the page, because a canvas does not report whether it was painted."""


def chromium() -> str:
    """Return the path of Chromium; raise if it is not installed."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise SettingError("peers: Chromium not found on the PATH; install it to open pages")
    return found


def playwright() -> Any:
    """Return the module playwright.sync_api; raise if it is not installed."""
    try:
        return import_module("playwright.sync_api")
    except ModuleNotFoundError as error:
        raise SettingError("peers: playwright not found; install it with: pip install playwright") from error


def first_picture(page: Path, shown: str, seconds: float, scripts: Mapping[str, str]) -> dict[str, Any]:
    """Return the seconds until the expression `shown` is true and painted, or None; and the number of elements."""
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
            opened.wait_for_timeout(POLL_MILLISECONDS)
        opened.evaluate(TWO_FRAMES)
        spent = time.perf_counter() - start
        return {"seconds": spent if spent <= seconds else None, "nodes": opened.evaluate(NODES)}


def _answer_with(file: str) -> Callable[[Any], None]:
    return lambda route: route.fulfill(path=file, content_type="text/javascript")


if __name__ == "__main__":
    answer = first_picture(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4]))
    sys.stdout.write(json.dumps(answer) + "\n")
