"""The views of the explorer that tests go through, in an order in which each leads to the next.

In: a page of a server with a small model in a session. Out: the page, in one view after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.recording import read
from tests.explorer.browser import with_first_head
from tests.explorer.model_sessions import CHARACTERS, make_session, small
from tests.explorer.pages import change, drawn, focus_map, in_trouble, state, until
from tests.explorer.serving import Handle, serving, small_trace

TYPED = "the dog that bit the man fled"
ELSEWHERE = "0" * 32


@contextmanager
def model_served() -> Iterator[Handle]:
    """A small model in a session, and what it has read already."""
    session, library = make_session(), Library()
    library.add(read(small(), TYPED + " and " + TYPED, CHARACTERS, progress=False), name="a text")
    with serving(library, session, page=True) as handle:
        yield handle


def settled(page: Page) -> None:
    """Wait until the inspector has read all that it shows of two pins."""
    for side in ("query", "key"):
        until(page, lambda side=side: page.locator(f".side-{side} li").count(), f"the report on the {side}")
    until(page, lambda: "reading…" not in page.inner_text(".inspector"), "all answers")


def scenes(page: Page) -> Iterator[str]:
    """Take a page from view to view, and say what each is called."""
    focus_map(page)
    yield "map"
    change(page, layer=1, head=1, zoom=40, centre={"query": 20, "key": 20})
    drawn(page)
    yield "map at token zoom"
    change(page, pinQuery=30, pinKey=4, zoom=None, centre=None)
    until(page, lambda: page.is_visible(".cell-panel .weight-large"), "the pinned cell")
    settled(page)
    yield "pinned"
    page.keyboard.press("r")
    until(page, lambda: page.locator(".strongest-table tbody tr").count() == 20, "the table")
    yield "table"
    page.keyboard.press("r")
    page.keyboard.press("u")
    until(page, lambda: state(page)["unmasked"], "the question")
    drawn(page)
    settled(page)
    yield "unmasked"
    page.keyboard.press("u")
    page.keyboard.press("?")
    until(page, lambda: page.is_visible("dialog.help"), "the help")
    yield "help"
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    page.fill("#sentence-text", TYPED)
    until(page, lambda: page.inner_text(".navigator .about").find(f"{len(TYPED)} tokens") >= 0, "the typed text")
    drawn(page)
    yield "sentence"
    page.check(".sentence input[type=checkbox]")
    until(page, lambda: page.locator(".sentence-maps .map").count() == 2, "the baseline")
    page.wait_for_selector(".sentence-maps figure:nth-of-type(2) .map[data-state=ready]", state="attached")
    yield "baseline"
    page.click("summary:has-text('Generate')")
    page.fill(".generation-fields input >> nth=0", "6")
    page.click(".generation-fields button.primary")
    until(page, lambda: "new token" in page.inner_text(".generation-fields"), "the new tokens")
    drawn(page)
    yield "generated"


@contextmanager
def trace_elsewhere(browser: Browser, handle: Handle, **options: object) -> Iterator[Page]:
    """A link to a trace that this server does not have."""
    with in_trouble(browser, f"{handle.url}#1/{ELSEWHERE}/L0H0/map", **options) as page:
        page.wait_for_selector("html[data-state=error]", state="attached")
        until(page, lambda: "This server has" in page.inner_text("main"), "what the server has")
        yield page


@contextmanager
def server_stopped(browser: Browser, **options: object) -> Iterator[Page]:
    """A page whose server has gone, and which has noticed."""
    with (
        serving(small_trace(), page=True) as handle,
        in_trouble(browser, with_first_head(handle.url), **options) as page,
    ):
        page.wait_for_selector("html[data-state=ready]", state="attached")
        handle.server.close()
        change(page, layer=1)
        until(page, lambda: page.is_visible(".banner"), "the banner")
        yield page
