"""What the text view may cost: milliseconds until a long text is there to read, and until it is painted anew."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, Route

from attnscope.attention import Causal
from attnscope.explorer.library.library import Library
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import Texts
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.pages import STORE, until
from tests.explorer.serving import Handle, serving
from tests.explorer.timing import kept

pytestmark = [pytest.mark.timed, needs_chromium]

TOKENS, LINKS = 131_072, 2000
SYLLABLES = ["ka", "ro", "min", "te", "lo", "sha", "ven", "ur", "is", "and", "the", "o"]

# Runs before the page: when the text has come, and when it has been painted. After the frame in which something
# changes, a message is heard only once that frame is on the screen.
WATCH = """
window.painted = (then) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => then(performance.now());
  channel.port2.postMessage(0);
});
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  if (window.shown || !document.querySelector(".text-view[data-state=ready]")) return;
  window.shown = 1;
  window.painted((now) => { window.shown = now; });
}).observe(document, { subtree: true, attributes: true, childList: true }));
"""

REPAINT = f"""(position) => new Promise((resolve) => {{
  const own = () => [...(CSS.highlights.get("attnscope-own-query") ?? [])][0];
  const before = own();
  const begun = performance.now();
  {STORE}.set({{ pinQuery: position, pinKey: position }});
  // The answer is held: it comes before the next frame.
  setTimeout(() => window.painted((now) => resolve(own() === before ? Infinity : now - begun)));
}})"""


class Words:
    """A tokenizer that only knows what its tokens are called."""

    def __init__(self, count: int) -> None:
        chance = random.Random(0)
        words = {"".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(9000)}
        self.names = [",", ".", ";", "\n", "\n\n", *(f" {word}" for word in sorted(words))]
        common = [400, 300, 40, 150, 60]
        weights = [*common, *(6000 / (at + 10) for at in range(len(self.names) - len(common)))]
        self.ids = chance.choices(range(len(self.names)), weights, k=count)

    def texts(self, ids: Sequence[int]) -> list[str]:
        return [self.names[number] for number in ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        del skip_special_tokens
        return "".join(self.texts(ids))


@pytest.fixture(scope="module")
def book() -> Iterator[Handle]:
    """A head of 131,072 tokens of prose in no language."""
    words = Words(TOKENS)
    trace = Trace("synthetic", words)
    trace.texts = [Texts("", torch.tensor([words.ids]))]
    chance = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, TOKENS, 2, generator=chance) for _ in range(2))
    trace.layers["a"] = Layer("a", Call(query=query, key=key, value=None, mask=Causal(), scale=None), cross=False)
    library = Library()
    library.add(trace, name="a book")
    with serving(library, page=True) as handle:
        yield handle


def linked(route: Route) -> None:
    """2,000 links all over the text, of all strengths; which ones depends on the token."""
    position = int(route.request.url.partition("?")[0].rpartition("/")[2])
    chance = random.Random(route.request.url)
    places = chance.sample(range(TOKENS), LINKS)
    weights = sorted((10.0 ** chance.uniform(-3.9, 0) for _ in places), reverse=True)
    links = [[place, place + 1, weight] for place, weight in zip(places, weights, strict=True)]
    found = {"span": [position, position + 1], "total": 1.0, "count": TOKENS, "links": links}
    route.fulfill(content_type="application/json", body=json.dumps(found))


@contextmanager
def opened_book(browser: Browser, book: Handle, query: str = "") -> Iterator[Page]:
    """The text, while the server does nothing else: what is asked about the head is not asked here."""
    trace = book.get("/api/1/session").json["traces"][0]["trace"]
    with opened(browser, "about:blank", ready=False, fresh=True) as page:
        nothing = {"labels": [], "scores": {}, "pending": False}
        page.route("**/scores", lambda route: route.fulfill(content_type="application/json", body=json.dumps(nothing)))
        profile = {"edges": [0, 1], "mass": [1.0], "ahead": [], "sampled_rows": 1, "rows": 1}
        page.route("**/profile", lambda route: route.fulfill(content_type="application/json", body=json.dumps(profile)))
        page.route("**/links/**", linked)
        page.add_init_script(WATCH)
        page.goto(f"{book.url}#1/{trace}/L0H0/text{query}")
        page.wait_for_selector(".text-view[data-state=ready]", timeout=30_000)
        until(page, lambda: page.evaluate("window.shown > 1"), "the first paint")
        yield page


def test_131072_tokens_are_there_to_read_300_milliseconds_after_they_have_come(browser: Browser, book: Handle) -> None:
    def measure() -> dict[str, tuple[float, float]]:
        with opened_book(browser, book) as page:
            shown, answered = page.evaluate(
                """() => [window.shown, performance.getEntriesByType("resource")
                     .find(({ name }) => name.includes("/text?")).responseEnd]"""
            )
            assert page.evaluate("document.querySelector('.column').textContent.length") > 4 * TOKENS
        return {"text of 131,072 tokens, from the answer to the paint": (shown - answered, 300)}

    assert kept(measure)


def test_2000_links_each_way_are_painted_anew_in_60_milliseconds(browser: Browser, book: Handle) -> None:
    with opened_book(browser, book, "?pin=q70000,k70000") as page:
        places: list[Any] = [70_000, 70_040]  # near each other: scrolling is not what is measured
        for place in places:
            page.evaluate(REPAINT, place)
            until(page, lambda: page.locator(".side-key li").count() == 10, "the links")
        page.wait_for_timeout(500)

        def measure() -> dict[str, tuple[float, float]]:
            found = [page.evaluate(REPAINT, places[turn % 2]) for turn in range(8)]
            count = page.evaluate("""() => [...CSS.highlights].filter(([name]) => /-(out|in)-/.test(name))
              .reduce((sum, [, highlight]) => sum + highlight.size, 0)""")
            assert count == 2 * LINKS + 16  # the legend has one of each
            return {"painting 4,000 links anew": (median(found), 60)}

        assert kept(measure)
