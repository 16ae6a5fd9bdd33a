"""A real Chromium, and what every page that it opens is held to.

A page fails its test by an error on the console, an exception, a breach of the content security policy, or a request to
anywhere but this machine.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, ViewportSize, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",  # continuous integration runs as root
    "--disable-gpu",  # software compositing of another kind makes frames ten times slower than a plain canvas is
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Each window would load two pages of the address bar, which takes as long as a page of the explorer.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup",
]
LOOPBACK = {"127.0.0.1", "localhost", "::1"}

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="the explorer is tested in Chromium, which is not here")


def slow_cases(*cases: Any) -> list[Any]:
    """Cases of a parametrized test that only scripts/check_more runs."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


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


# Contexts that no tab uses now, by their options.
_unused: WeakKeyDictionary[Browser, dict[str, BrowserContext]] = WeakKeyDictionary()


@contextmanager
def new_tab(
    browser: Browser, *, width: int = 1600, height: int = 1000, fresh: bool = False, **options: Any
) -> Iterator[Page]:
    """An empty tab without cookies or stored data, in a context of its own for as long as it is open.

    The next tab with the same options takes the context over, and with it a warm renderer process: a page then loads
    in half the CPU time. `fresh` makes a new context, for tests that measure time or memory.
    """
    viewport: ViewportSize = {"width": width, "height": height}
    if fresh:
        with browser.new_context(viewport=viewport, **options) as context:
            yield context.new_page()
        return
    contexts, key = _unused.setdefault(browser, {}), repr(sorted(options.items()))
    context = contexts.pop(key, None) or _new_context(browser, options)
    is_empty = False
    try:
        page = context.new_page()
        page.set_viewport_size(viewport)
        yield page
        is_empty = _empty(context, page)
    finally:
        if is_empty and key not in contexts:
            contexts[key] = context
        else:
            context.close()


def _new_context(browser: Browser, options: dict[str, Any]) -> BrowserContext:
    """A context with a blank page at this machine's address: it keeps the renderer process of that site alive."""
    context = browser.new_context(**options)
    blank = context.new_page()
    blank.route("**/*", lambda route: route.fulfill(content_type="text/html", body=""))
    blank.goto("http://127.0.0.1/")
    return context


def _empty(context: BrowserContext, page: Page) -> bool:
    """Close all pages but the blank one and delete what they stored; False where that cannot be reached."""
    if page.is_closed() or urlsplit(page.url).hostname not in LOOPBACK:
        return False
    page.unroute_all(behavior="ignoreErrors")
    page.evaluate("localStorage.clear()")
    for used in context.pages[1:]:
        used.close()
    context.clear_cookies()
    return True


@contextmanager
def opened(
    browser: Browser,
    url: str,
    *,
    ready: bool = True,
    visited: bool = True,
    opening: bool = False,
    **options: Any,
) -> Iterator[Page]:
    """A page on an address, with a store of its own; watched until it is closed.

    `visited`: by somebody who has been here before. `opening`: the explorer chooses the head, where the address names
    none; otherwise it is the first. `options` are those of `new_tab`.
    """
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(f"console: {message.text}")

    def follow(request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname not in LOOPBACK:
            complaints.append(f"request to {request.url}")

    with new_tab(browser, **options) as page:
        page.add_init_script(WATCH_POLICY)
        if visited:
            page.add_init_script(BEEN_HERE)
        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        page.on("request", follow)
        page.goto(url if opening else with_first_head(url))
        if ready:
            wait_until_ready(page)
        yield page
        page.unroute_all(behavior="ignoreErrors")  # an answer on its way would fail in whichever test comes next
        complaints += [f"policy: {breach}" for breach in page.evaluate("window.breaches")]
    assert not complaints, complaints


def with_first_head(url: str) -> str:
    """An address of a server with the first head, unless it names another one."""
    return f"{url}#1/-/L0H0/map" if "#token=" in url and "#1/" not in url else url


def wait_until_ready(page: Page, timeout: float = 20_000) -> None:
    """Wait for the first heatmap that shows weights, not a placeholder."""
    # No wait_for_function: it would poll by evaluating a string, which the page's policy forbids.
    page.wait_for_selector("html[data-state=ready]", state="attached", timeout=timeout)
