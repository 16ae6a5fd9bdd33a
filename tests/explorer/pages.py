"""What tests do with a page of the explorer: open it, read its state, wait for it, and the models that it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.recording import Trace, read
from tests.explorer.browser import BEEN_HERE, new_tab, opened
from tests.explorer.serving import Handle, serving, small_trace
from tests.models.smollm2 import own_model

STORE = "document.getElementById('explorer').attnscope.store"
MAP = "document.getElementById('explorer').attnscope.map"
SENTENCE = "The dog that bit the man fled because it was afraid."
MAX_SECONDS = 20


@contextmanager
def shown(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page that has drawn its first heatmap."""
    with opened(browser, url, ready=False, **options) as page:
        ready(page)
        yield page


@contextmanager
def in_trouble(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page that may be refused and left alone: the console says so, and nothing else may be wrong."""
    errors: list[str] = []
    with new_tab(browser, **options) as page:
        page.add_init_script(BEEN_HERE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        yield page
    assert not errors, errors


def ready(page: Page) -> None:
    """Wait for the first heatmap; by a selector, for the page's policy forbids the polling of an expression."""
    page.wait_for_selector("html[data-state=ready]", state="attached", timeout=1000 * MAX_SECONDS)


def drawn(page: Page) -> None:
    """Wait until all that is in view has been drawn."""
    page.wait_for_selector(".map[data-state=ready]", state="attached", timeout=1000 * MAX_SECONDS)
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")


def state(page: Page) -> dict[str, Any]:
    """What the page says that it shows."""
    return page.evaluate(f"{STORE}.get()")


def change(page: Page, **wanted: Any) -> None:
    """Put a page into a state, as a link would."""
    page.evaluate(f"(wanted) => {STORE}.set(wanted)", wanted)


def visible(page: Page) -> dict[str, list[int]]:
    """The tokens in view."""
    return page.evaluate(f"{MAP}.visible()")


def fragment(page: Page) -> str:
    """The part of the address that names the state."""
    return page.evaluate("location.hash")


def spoken(page: Page) -> str:
    """What a screen reader has been told last."""
    return page.evaluate("document.querySelector('[aria-live=polite][aria-atomic]').textContent")


def until(page: Page, true: Callable[[], Any], what: str, seconds: float = MAX_SECONDS) -> Any:
    """Ask again until something is there, and say what was waited for if it never is."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        page.wait_for_timeout(20)
    return found


def looks(page: Page, colours: Literal["light", "dark"], **media: Any) -> None:
    """Let a page be light or dark, and wait until it has followed."""
    page.emulate_media(color_scheme=colours, **media)
    page.wait_for_selector(f".explorer[data-theme={colours}]", state="attached")


def focus_map(page: Page) -> None:
    """Give the map the keyboard, as a click or the Tab key would."""
    page.focus(".centre .map >> nth=0")


@cache
def long_trace() -> Trace:
    """SmolLM2 reading 300 tokens or so, with a title and speakers; some of them are long."""
    lines = (
        f"SPEAKER {number}:\nLine {number} of a play that goes on, unconstitutionally long.\n\n" for number in range(14)
    )
    model, tokenizer = own_model()
    return read(model, "= A play =\n\n" + "".join(lines), tokenizer, progress=False)


@contextmanager
def smollm2_served(trace: Trace | None = None) -> Iterator[Handle]:
    """A server of SmolLM2 with a trace of it."""
    model, tokenizer = own_model()
    library = Library()
    if trace is not None:
        library.add(trace, name="a play")
    with serving(library, ModelSession(model, tokenizer, "SmolLM2-135M"), page=True) as handle:
        yield handle


@contextmanager
def small_served() -> Iterator[Handle]:
    """A small model with random weights, on 72 characters."""
    with serving(small_trace(), page=True) as handle:
        yield handle
