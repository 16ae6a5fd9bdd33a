"""A real Chromium, and what every page that it opens is held to.

A page fails its test by an error on the console, an exception, a breach of the content security policy, or a request to
anywhere but this machine.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",  # continuous integration runs as root
    "--disable-gpu",  # software compositing of another kind makes frames ten times slower than a plain canvas is
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOOPBACK = {"127.0.0.1", "localhost", "::1"}

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="the explorer is tested in Chromium, which is not here")

# Runs before the page's own script: breaches are events, which would otherwise be gone before anybody listens.
WATCH_POLICY = """
window.breaches = [];
document.addEventListener("securitypolicyviolation", (event) => window.breaches.push(event.violatedDirective));
"""

# Runs there too: who has been here before is not asked whether to take the tour.
BEEN_HERE = """try { localStorage.setItem("attnscope.tour", "yes"); } catch { /* a page without an origin */ }"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for many pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    url: str,
    *,
    width: int = 1600,
    height: int = 1000,
    ready: bool = True,
    visited: bool = True,
    **context: Any,
) -> Iterator[Page]:
    """A page on an address, with a store of its own; watched until it is closed.

    `visited`: by somebody who has been here before.
    """
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(f"console: {message.text}")

    def follow(request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname not in LOOPBACK:
            complaints.append(f"request to {request.url}")

    with browser.new_context(viewport={"width": width, "height": height}, **context) as inside:
        page = inside.new_page()
        page.add_init_script(WATCH_POLICY)
        if visited:
            page.add_init_script(BEEN_HERE)
        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        page.on("request", follow)
        page.goto(url)
        if ready:
            wait_until_ready(page)
        yield page
        page.unroute_all(behavior="ignoreErrors")  # an answer on its way would fail in whichever test comes next
        complaints += [f"policy: {breach}" for breach in page.evaluate("window.breaches")]
    assert not complaints, complaints


def wait_until_ready(page: Page, timeout: float = 20_000) -> None:
    """Wait for the first heatmap that shows weights, not a placeholder."""
    # No wait_for_function: it would poll by evaluating a string, which the page's policy forbids.
    page.wait_for_selector("html[data-state=ready]", state="attached", timeout=timeout)
