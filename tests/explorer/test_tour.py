"""The tour: offered once, shown on the example that comes along, true in what it says, and gone without a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope.explorer.library.example import example
from attnscope.explorer.library.library import Library
from attnscope.heads import score_heads
from tests.explorer.browser import needs_chromium, opened, slow_cases
from tests.explorer.model_sessions import make_session
from tests.explorer.pages import change, drawn, focus_map, looks, ready, shown, small_served, state, until
from tests.explorer.serving import Handle, serving
from tests.explorer.test_access import needs_axe, violations
from tests.explorer.test_screens import CUT, TINY

pytestmark = needs_chromium
STEPS = 7
CARD = ".tour"
INVITATION = ".invitation"
NEXT = f"{CARD} button.primary"


@pytest.fixture(scope="module")
def served() -> Iterator[Handle]:
    with small_served() as handle:
        yield handle


@pytest.fixture
def first_visit(browser: Browser, served: Handle) -> Iterator[Page]:
    with shown(browser, served.url, visited=False) as page:
        yield page


def toured(page: Page) -> Iterator[str]:
    """Go through the tour, and say the words of each step."""
    for number in range(1, STEPS + 1):
        until(page, lambda number=number: f"{number} of {STEPS}" in page.inner_text(CARD), f"step {number}")
        drawn(page)
        yield page.inner_text(CARD)
        page.click(NEXT)


def weights(layer: int, head: int = 0) -> torch.Tensor:
    return example()[layer].batch(0).head(head)[:]


def page_labels(at: dict[str, Any]) -> tuple[str, ...]:
    """The labels of the head that a step shows; of the example, one layer in five has a second head."""
    before = sum(2 if layer == 2 else 1 for layer in range(at["layer"]))
    return (score_heads(example(), progress=False).labels or ())[before + at["head"]]


def test_the_first_visit_is_invited_and_nothing_is_blocked_by_it(first_visit: Page) -> None:
    page = first_visit
    assert "A tour of one minute" in page.inner_text(INVITATION)
    assert not page.is_visible(CARD)
    focus_map(page)
    page.keyboard.press("}")
    assert state(page)["layer"] == 1
    page.get_by_role("button", name="Text", exact=True).click()
    assert state(page)["view"] == "text"
    assert page.is_visible(INVITATION)


@pytest.mark.parametrize("answer", [*slow_cases("Start"), "Not now"])
def test_whoever_has_answered_is_not_asked_again(first_visit: Page, answer: str) -> None:
    page = first_visit
    page.click(f"{INVITATION} >> text={answer}")
    assert not page.is_visible(INVITATION)
    page.reload()
    ready(page)
    assert not page.is_visible(INVITATION)


@pytest.mark.slow
def test_it_ends_on_an_induction_head_to_try_and_back_leads_to_where_one_was(browser: Browser, served: Handle) -> None:
    with shown(browser, served.url, visited=False) as page:
        focus_map(page)
        change(page, layer=1, head=2, pinQuery=30, hideSink=True, scale="linear", colours="magma", zoom=20)
        change(page, centre={"query": 20, "key": 20})
        until(page, lambda: "c=20,20" in page.evaluate("location.hash"), "the address of this")
        drawn(page)
        before, address = state(page), page.evaluate("location.hash")
        entries = page.evaluate("history.length")
        page.click(f"{INVITATION} >> text=Start")
        assert len(list(toured(page))) == STEPS
        assert not page.is_visible(CARD)
        assert "induction" in page_labels(state(page))
        assert state(page)["pinQuery"] is not None
        assert page.locator(".toured").count() == 0
        assert page.evaluate("history.length") == entries + 1, "Back does not lead through the tour"
        page.go_back()
        until(page, lambda: state(page) == before, "everything as it was")
        assert page.evaluate("location.hash") == address


@pytest.mark.slow
def test_each_step_shows_the_example_and_marks_the_part_it_tells_of(first_visit: Page) -> None:
    page = first_visit
    page.click(f"{INVITATION} >> text=Start")
    titles, places = set(), set()
    for _ in toured(page):
        titles.add(page.inner_text(f"{CARD} h2"))
        places.add((state(page)["layer"], state(page)["head"], state(page)["pinQuery"], state(page)["pinKey"]))
        assert "An example" in page.inner_text(".trace-name")
        assert "SmolLM2-135M" in page.inner_text(".navigator .model")
        marked = page.locator(".toured")
        assert marked.count() == 1
        part, card = marked.bounding_box(), page.locator(CARD).bounding_box()
        assert part
        assert card
        beside = (
            card["x"] >= part["x"] + part["width"]
            or card["x"] + card["width"] <= part["x"]
            or card["y"] >= part["y"] + part["height"]
        )
        assert beside, f"the card of {titles} covers what it tells of"
    assert len(titles) == STEPS
    assert len(places) >= 5


def test_what_the_tour_says_is_true_of_the_example(first_visit: Page) -> None:
    page = first_visit
    page.click(f"{INVITATION} >> text=Start")
    seen: list[tuple[str, dict[str, Any]]] = [(words, state(page)) for words in toured(page)]
    tokens = example().tokens() or []

    def step(title: str) -> tuple[str, dict[str, Any]]:
        return next((words, at) for words, at in seen if title in words)

    words, at = step("One attention weight")
    query, key = at["pinQuery"], at["pinKey"]
    assert tokens[query].strip() in re.findall("“(.*?)”", words)
    assert tokens[key].strip() in re.findall("“(.*?)”", words)
    assert tokens[:query].count(tokens[query]) == 1, "the second of its kind"
    assert tokens.index(tokens[query]) == key - 1, "after the first"
    assert f"{weights(at['layer'])[query, key] * 100:.0f}%" in words
    _, at = step("A bright column")
    assert weights(at["layer"], at["head"])[:, 0].mean() > 0.99
    assert at["pinKey"] == 0
    _, at = step("previous token")
    assert weights(at["layer"], at["head"]).diagonal(-1).mean() > 0.8
    _, at = step("Labels of heads")
    assert "induction" in page_labels(at)
    _, at = step("Hatched")
    assert not weights(at["layer"], at["head"]).triu(1).any()


@pytest.mark.slow
def test_escape_leaves_the_tour_from_wherever_one_is(first_visit: Page) -> None:
    page = first_visit
    before = state(page)
    page.click(f"{INVITATION} >> text=Start")
    page.click(NEXT)
    page.keyboard.press("Escape")
    assert not page.is_visible(CARD)
    until(page, lambda: state(page) == before, "the place of before")
    page.keyboard.press("?")
    page.click("text=Take the tour")
    assert page.is_visible(CARD)
    focus_map(page)
    page.keyboard.press("Escape")
    assert not page.is_visible(CARD)
    assert state(page) == before


@pytest.mark.slow
def test_the_tour_by_keyboard_alone(browser: Browser, served: Handle) -> None:
    with shown(browser, served.url) as page:
        focus_map(page)
        page.keyboard.press("?")
        page.get_by_role("button", name="Take the tour").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.classList.contains('tour')"), "the card has the keyboard"
        assert page.get_by_role("dialog", name="Rows attend to columns").is_visible()
        spoken = page.locator(f"{CARD} [aria-live=polite]")
        first = spoken.inner_text()
        page.keyboard.press("ArrowRight")
        second = spoken.inner_text()
        assert second != first
        page.keyboard.press("ArrowLeft")
        assert spoken.inner_text() == first
        for name in ("Leave", "Back", "Next"):
            page.keyboard.press("Tab")
            if name == "Back":
                assert page.evaluate("document.activeElement.textContent") == "Next", "there is nothing to go back to"
                break
            assert page.evaluate("document.activeElement.textContent") == name
        for _ in range(STEPS):
            page.keyboard.press("Enter")
        assert not page.is_visible(CARD)
        assert page.evaluate("document.activeElement.classList.contains('map')"), "back where the keyboard was"


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("size", [(1600, 1000), (700, 900), (360, 640)], ids=["wide", "small", "phone"])
def test_each_step_can_be_read_by_everybody(browser: Browser, served: Handle, size: tuple[int, int]) -> None:
    width, height = size
    found: dict[str, Any] = {}
    with shown(browser, served.url, visited=False, width=width, height=height, bypass_csp=True) as page:
        found["invitation"] = [*violations(page), *page.evaluate(CUT), *page.evaluate(TINY)]
        page.click(f"{INVITATION} >> text=Start")
        for number, _ in enumerate(toured(page), 1):
            for colours in ("light", "dark"):
                looks(page, colours)
                found[f"{number}, {colours}"] = [*violations(page), *page.evaluate(CUT), *page.evaluate(TINY)]
            card = page.locator(CARD).bounding_box()
            assert card
            assert card["x"] >= 0
            assert card["x"] + card["width"] <= width
            assert card["y"] + card["height"] <= height, "the card is in the window"
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert {where: wrong for where, wrong in found.items() if wrong} == {}


@pytest.mark.slow
def test_the_tour_can_be_taken_before_anything_was_typed(browser: Browser) -> None:
    with (
        serving(Library(), make_session(), page=True) as handle,
        opened(browser, handle.url, ready=False, visited=False) as page,
    ):
        page.click(f"{INVITATION} >> text=Start")
        assert len(list(toured(page))) == STEPS
        assert (state(page)["view"], state(page)["trace"] != "") == ("map", True), "it ends on a head of the example"
        page.click("button:has-text('Type a sentence')")
        assert page.is_visible("#sentence-text")


def test_without_a_trace_of_ones_own_the_example_is_what_is_shown(browser: Browser) -> None:
    with serving(Library(), page=True) as handle, opened(browser, handle.url) as page:
        assert "An example" in page.inner_text(".trace-name")
        assert state(page)["view"] == "map"
