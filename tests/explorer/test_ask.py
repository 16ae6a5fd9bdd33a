"""Asking which head does something: the Ask box, the ranking of all heads, and where the page opens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route

from attnscope.heads import find_heads
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.pages import change, focus_map, shown, state, until
from tests.explorer.serving import TEXT, Handle, small_trace

pytestmark = needs_chromium
INPUT = ".ask-input"


@pytest.fixture
def page(browser: Browser, small: Handle) -> Iterator[Page]:
    with shown(browser, small.url) as found:
        focus_map(found)
        yield found


def ask(page: Page, text: str, key: str = "Enter") -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type(text)
    page.keyboard.press(key)


def ranked(page: Page) -> list[tuple[str, float]]:
    rows = page.locator(".rank-row").all_inner_texts()
    parts = [row.split() for row in rows]
    return [(part[1], float(part[-1].replace("×10⁻", "e-"))) for part in parts]


def test_a_link_ranks_all_heads_as_python_does(page: Page) -> None:
    """One question: the heads in order with exact weights, the cells of the grid, and the sentence above the map."""
    trace = small_trace()
    ask(page, "-1 -> 3..9")
    now = until(page, lambda: state(page)["pinKey"] is not None and state(page), "the link")
    last = len(TEXT) - 1
    assert [now[pin] for pin in ("pinQuery", "pinQueryEnd", "pinKey", "pinKeyEnd")] == [last, None, 3, 9]
    table = find_heads(trace, query=last, key=range(3, 10))
    layers = list(trace.layers)
    names = [f"L{layers.index(layer)}H{head}" for layer, head in zip(table.layers, table.heads, strict=True)]
    found = until(page, lambda: [name for name, _ in ranked(page)] == names and ranked(page), "the order of Python")
    assert [value for _, value in found] == pytest.approx(table["weight"].tolist(), rel=0.01)
    title = page.get_attribute(f".head-grid [data-layer='{names[0][1]}'][data-head='{names[0][3]}']", "title")
    assert title
    assert "weight" in title
    page.click(".rank-row >> nth=0")
    until(page, lambda: page.inner_text(".head-title h2").startswith(names[0]), "the strongest head")
    assert f"gives {100 * found[0][1]:.3g}"[:8] in page.inner_text(".head-sentence")
    labels = page.locator(".head-title-label, .rank-text").all_inner_texts()
    assert labels == [""], "a label is about all queries of a head, and this link may be an exception"
    assert "k3..9" in until(page, lambda: "k3..9" in page.evaluate("location.hash") and page.url, "the address")


def test_words_are_pinned_as_query_or_key_and_leave_the_other_pin(page: Page) -> None:
    places = [at for at in range(len(TEXT)) if TEXT.lower().startswith("th", at)]
    change(page, pinQuery=5)
    page.keyboard.press("Control+k")
    page.keyboard.type("th")
    option = page.locator("[role=option]").first
    until(page, lambda: f"of {len(places)}" in option.inner_text(), "the places")
    assert state(page)["pinQuery"] == 5, "finding is not pinning"
    active = page.get_attribute(INPUT, "aria-activedescendant")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute(INPUT, "aria-activedescendant") != active
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+Enter")
    first = next(place for place in places if place >= 5)
    until(page, lambda: state(page)["pinKey"] == first, "the key")
    assert (state(page)["pinQuery"], state(page)["pinKeyEnd"]) == (5, first + 1)
    ask(page, "th")
    until(page, lambda: state(page)["pinQuery"] == first + 1, "the last token of the words as query")
    assert state(page)["pinKey"] == first


def test_words_at_the_beginning_of_the_text_have_nothing_before_them(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type(TEXT[:5])
    first = until(page, lambda: page.locator(".ask-context").first.is_visible(), "the places") and page.inner_text(
        ".ask-context >> nth=0"
    )
    assert first.startswith(TEXT[:5])


def test_the_last_place_counts_and_others_are_offered(page: Page) -> None:
    """The rule of parse_link: the last place of the query's words, and of the key's words before it."""
    query = TEXT.lower().rfind("e")
    keys = [at for at in range(query) if TEXT[at] == "o"]
    page.keyboard.press("Control+k")
    page.keyboard.type("e -> o")
    until(page, lambda: page.locator("[role=option]").count() >= 2, "the links")
    assert f"{keys[-1]}" in page.inner_text("[role=option] >> nth=0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    until(page, lambda: state(page)["pinKey"] == keys[-2], "the other key")
    ask(page, "e -> o")
    until(page, lambda: (state(page)["pinQuery"], state(page)["pinKey"]) == (query, keys[-1]), "the last places")


def test_heads_filters_and_commands_are_asked_for_by_name(page: Page) -> None:
    ask(page, "L1H2")
    until(page, lambda: (state(page)["layer"], state(page)["head"]) == (1, 2), "the head")
    ask(page, "0.3")
    until(page, lambda: (state(page)["layer"], state(page)["head"]) == (0, 3), "the other head")
    page.keyboard.press("Control+k")
    page.keyboard.type("entropy<100")
    until(page, lambda: "8 heads" in page.inner_text(".ask-popup"), "the count")
    page.keyboard.press("Enter")
    until(page, lambda: state(page)["filter"] == "entropy<100", "the filter")
    until(page, lambda: page.locator(".rank-row").count() == 8, "the heads by entropy")
    page.click(".filters button")
    assert state(page)["filter"] == ""
    ask(page, "> without the mask")
    until(page, lambda: state(page)["unmasked"], "the command")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.className") == "ask-input"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.classList.contains('map')")


def finding(layer: int, head: int) -> dict[str, object]:
    link = {"query": 9, "key": 4, "weight": 0.5}
    return {"layer": layer, "head": head, "label": "previous", "meaning": "So.", "score": 0.9, **link}


def answer(route: Route, found: dict[str, object] | None, *, pending: bool) -> None:
    cards = [finding(0, 3)]
    route.fulfill(json={"pending": pending, "scored_queries": 7, "num_queries": 9, "opening": found, "cards": cards})


def test_the_page_opens_on_the_head_of_the_opening_unless_the_reader_was_first(browser: Browser, small: Handle) -> None:
    with opened(browser, small.url, opening=True) as page:
        chosen = until(page, lambda: state(page)["pinQuery"] is not None and state(page), "the opening")
        name = f"L{chosen['layer']}H{chosen['head']}"
        until(page, lambda: name in page.evaluate("location.hash"), "the address")
        assert page.inner_text(".head-title h2").startswith(name)
        until(page, lambda: " to " in page.inner_text(".head-sentence"), "the sentence")
        assert page.locator(".card").count() > 0
    scored = [False]  # whether all tokens are
    answered: list[bool] = []

    def later(route: Route) -> None:
        answered.append(scored[0])
        answer(route, finding(1, 2) if scored[0] else None, pending=not scored[0])

    for acts in (False, True):
        scored[0] = False
        answered.clear()
        with opened(browser, "about:blank", ready=False) as page:
            page.route("**/opening", later)
            page.goto(small.url)
            page.wait_for_selector("html[data-state=ready]", state="attached")
            until(page, lambda: "from the first 7 tokens" in page.inner_text(".cards"), "the first cards")
            if acts:
                page.click(".head-grid button >> nth=1")
            before = state(page)
            until(page, lambda: len(answered) > 1, "a second question")
            scored[0] = True
            until(page, lambda: True in answered, "the last answer")
            if acts:
                page.wait_for_timeout(100)
                assert (state(page)["layer"], state(page)["head"]) == (before["layer"], before["head"])
            else:
                until(
                    page,
                    lambda: (state(page)["layer"], state(page)["head"], state(page)["pinKey"]) == (1, 2, 4),
                    "L1H2",
                )
            page.click(".card")
            until(page, lambda: (state(page)["layer"], state(page)["head"]) == (0, 3), "the head of the card")
