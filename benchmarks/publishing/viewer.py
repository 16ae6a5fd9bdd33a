"""A site in Chromium, with added latency: times in the page, and requests and bytes in the log of the web server.

In: the address of a site and the log of its server. Out: the time, requests and bytes of each step of a viewer.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

LATENCY_MS = 50
WINDOW = {"width": 1440, "height": 900}
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
MAX_SECONDS = 120.0
QUIET_SECONDS = 0.7  # without a response, a step is complete

VISITED = """localStorage.setItem("attnscope.tour", "yes");"""  # the page does not offer its tour
SHOW = """async (change) => {
  const { store } = document.getElementById("explorer").attnscope, map = document.querySelector(".map");
  const frame = () => new Promise(requestAnimationFrame), start = performance.now();
  store.set(change);
  await frame();
  await frame();
  while (map.dataset.state !== "ready") await frame();
  return (performance.now() - start) / 1000;
}"""
CHANGE = """(change) => document.getElementById("explorer").attnscope.store.set(change)"""
FIRST = """performance.getEntriesByName("first-heatmap")[0].startTime / 1000"""

HeadId = tuple[int, int]
"""The index of a layer in the trace, and of a head in the layer."""


class Step(NamedTuple):
    """A step of a viewer, and the state of the page after it."""

    name: str
    change: dict[str, Any]

    @property
    def shows_map(self) -> bool:
        """Whether the step ends with a complete heatmap."""
        return self.change.get("view", "map") == "map"


class Cost(NamedTuple):
    """What one step took."""

    seconds: float | None
    """Until the heatmap is complete; None for other views."""
    requests: int
    num_bytes: int
    """Of responses with their headers."""


class AccessLog:
    """The responses that a web server has logged since the last call of `take`."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def count(self) -> int:
        """The number of responses that were not taken."""
        return len(self._path.read_text().splitlines()) - self._read

    def take(self) -> tuple[int, int]:
        """Return the number and the bytes of new responses."""
        new = self._path.read_text().splitlines()[self._read :]
        self._read += len(new)
        return len(new), sum(int(line.split(" ", 2)[1]) for line in new)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without data of earlier sessions."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def find_chromium() -> str | None:
    """Return the path of Chromium, or None."""
    return shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def open_site(browser: Browser, url: str, head: HeadId, *, latency_ms: int = LATENCY_MS) -> Iterator[Page]:
    """Open a head of a site with an empty cache, and wait for its heatmap."""
    with browser.new_context(viewport=WINDOW) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.add_init_script(VISITED)
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        speed = {"latency": latency_ms, "downloadThroughput": -1, "uploadThroughput": -1}
        session.send("Network.emulateNetworkConditions", {"offline": False, **speed})
        page.goto(f"{url}#1/-/L{head[0]}H{head[1]}/map")
        page.wait_for_selector("html[data-state=ready]", state="attached", timeout=1000 * MAX_SECONDS)
        yield page


def settle(page: Page, log: AccessLog) -> None:
    """Wait until the server has logged nothing for a while."""
    end = time.monotonic() + MAX_SECONDS
    while time.monotonic() < end:
        before = log.count()
        page.wait_for_timeout(1000 * QUIET_SECONDS)
        if log.count() == before:
            return


def measure_opening(page: Page, log: AccessLog) -> Cost:
    """The cost of the view that has just been opened."""
    settle(page, log)
    return Cost(page.evaluate(FIRST), *log.take())


def measure_step(page: Page, log: AccessLog, step: Step) -> Cost:
    """Change the state of the page, as a link does, and return what that took."""
    if step.shows_map:
        page.wait_for_selector(".map", state="attached")
        seconds = page.evaluate(SHOW, step.change)
    else:
        page.evaluate(CHANGE, step.change)
        seconds = None
    settle(page, log)
    return Cost(seconds, *log.take())


def measure_minute(page: Page, log: AccessLog, steps: Sequence[Step], seconds: float) -> Cost:
    """Walk through steps at a fixed pace after the opening, which counts; return all requests and bytes."""
    start = time.monotonic()
    for number, step in enumerate(steps, start=1):
        due = start + number * seconds / (len(steps) + 1)
        page.wait_for_timeout(max(0.0, 1000 * (due - time.monotonic())))
        page.evaluate(CHANGE, step.change)
    page.wait_for_timeout(max(0.0, 1000 * (start + seconds - time.monotonic())))
    settle(page, log)
    return Cost(None, *log.take())


def viewer_steps(length: int, heads: Sequence[HeadId]) -> list[Step]:
    """The steps of a viewer of a text of `length` tokens, after the first of `heads` is open.

    Heads that were not published are left out: the second is of the same layer, the last of another one.
    """
    query, key = length * 3 // 4, length * 3 // 4 - 30
    whole = {"view": "map", "centre": None, "zoom": None, "pinQuery": None, "pinKey": None}
    near = {"view": "map", "centre": {"query": query, "key": key}}
    steps = [
        Step("zoom to bins of several tokens", {**near, "zoom": 0.4}),
        Step("zoom to single weights", {**near, "zoom": 14}),
    ]
    steps += [Step("pin a query and a key", {"pinQuery": query, "pinKey": key}), Step("back to the whole head", whole)]
    same = [head for head in heads[1:] if head[0] == heads[0][0]]
    other = [head for head in heads if head[0] != heads[0][0]]
    for name, some in (("another head of the same layer", same), ("a head of another layer", other)):
        if some:
            steps.append(Step(name, {**whole, "layer": some[0][0], "head": some[0][1]}))
    steps += [
        Step("single weights elsewhere", {**near, "centre": {"query": length // 2, "key": length // 3}, "zoom": 14})
    ]
    steps += [Step("text view", {"view": "text"}), Step("view of all heads", {"view": "heads"})]
    if other:
        steps.append(Step("a head of a third layer", {**whole, "layer": other[-1][0], "head": other[-1][1]}))
    return steps
