"""The text view: what is painted in the text is what the server says, and it can be read without a mouse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.recording import Trace, read
from tests.explorer.browser import needs_chromium, opened, slow_cases
from tests.explorer.pages import change, fragment, shown, spoken, state, until
from tests.explorer.reading import (
    as_shown,
    box_of,
    flat,
    get_json,
    identity,
    linked,
    number,
    own,
    painted,
    pinned,
    reading,
    step_of,
    tokens,
)
from tests.explorer.serving import Handle, serving
from tests.explorer.test_access import SIZES, needs_axe, violations_in_every_look
from tests.models.smollm2 import own_model

pytestmark = needs_chromium

STORY = (
    "# The fox\n\nA fox met a crow, who'd found some cheese.\nThe fox said: how well-made you are!\n\n"
    "Then 🦊 ate. \tThe crow - naïve - wept.\n\n"
) * 6


@pytest.fixture(scope="module")
def trace() -> Trace:
    model, tokenizer = own_model()
    return read(model, STORY, tokenizer, layers=[3, 16], progress=False)


@pytest.fixture(scope="module")
def story(trace: Trace) -> Iterator[Handle]:
    library = Library()
    library.add(trace, name="a story")
    with serving(library, page=True) as handle:
        yield handle


@pytest.fixture(scope="module")
def tab(browser: Browser, story: Handle) -> Iterator[Page]:
    with shown(browser, story.url) as page:
        yield page


@pytest.fixture
def page(tab: Page, story: Handle) -> Page:
    """The story to read, with nothing pinned."""
    tab.goto("about:blank")
    tab.goto(f"{story.base}/#1/{identity(story)}/L0H0/text")
    reading(tab)
    return tab


def test_the_page_holds_the_text_and_every_token_of_it(page: Page, story: Handle) -> None:
    paragraphs = page.evaluate("[...document.querySelectorAll('.column > p')].map((one) => one.textContent)")
    whole = "".join(flat(paragraph) for paragraph in paragraphs)
    assert whole == as_shown(STORY)
    assert len(paragraphs) == STORY.count("\n\n")
    assert page.locator(".column > p > *").count() == 0, "one text node each"
    # The tokens on it, one after the other, by stepping: each has the text that the server tells of it.
    texts = tokens(story)
    page.keyboard.press("Home")
    change(page, pinQuery=0, pinKey=0)
    for position in range(12):
        until(page, lambda: own(page), "the token")
        assert state(page)["pinQuery"] == position
        wanted = [as_shown(texts[position])]
        until(page, lambda wanted=wanted: [flat(text) for text in own(page)[:1]] == wanted, f"token {position}")
        page.keyboard.press(".")


@pytest.mark.parametrize(("layer", "head", "position"), [*slow_cases((0, 0, 60)), (1, 3, 140), *slow_cases((1, 7, 5))])
def test_what_is_painted_is_what_the_server_tells(
    page: Page, story: Handle, layer: int, head: int, position: int
) -> None:
    texts = tokens(story)
    pinned(page, position, layer=layer, head=head)
    assert [flat(text) for text in own(page)] == [as_shown(texts[position])]
    for direction, side in (("out", "query"), ("in", "key")):
        links = get_json(story, f"{layer}/{head}/links/{side}/{position}")["links"]
        whole = [(start, weight) for start, _, weight in links if not texts[start].strip().startswith("\\x")]
        found = painted(page, direction)
        true = sorted((as_shown(texts[start]), step_of(weight)) for start, weight in whole if step_of(weight))
        seen = sorted((flat(text), step) for text, step in found.values() if "🦊" not in text)
        assert seen == true


def test_the_lists_hold_the_same_links_with_their_numbers(page: Page, story: Handle) -> None:
    pinned(page, 100, layer=1, head=2)
    for side in ("query", "key"):
        links = [link for link in get_json(story, f"1/2/links/{side}/100")["links"] if link[2] >= 1e-6]
        rows = page.locator(f".text-links .side-{side} li")
        assert rows.count() == min(10, len(links))
        for row, (start, _, weight) in zip(rows.all(), links, strict=False):
            _, place, told = row.locator("button > *").all_inner_texts()[:3]
            assert int(place) == start
            assert number(told) == pytest.approx(weight, rel=0.06 if "×" in told else 0.006)
        if len(links) > 10:
            page.click(f".text-links .side-{side} .more")
            assert rows.count() == min(50, len(links))


def test_words_are_painted_whole_and_with_the_sums_of_their_tokens(page: Page, story: Handle, trace: Trace) -> None:
    texts = tokens(story)
    place = next(at for at, text in enumerate(texts) if "who" in text)
    starts = [*get_json(story, "0/words?side=key"), len(texts)]
    spans = list(pairwise(starts))
    mine = next((start, stop) for start, stop in spans if start <= place < stop)
    assert "".join(texts[slice(*mine)]).strip() == "who'd"
    pinned(page, place, words=True, layer=1, head=3)
    until(page, lambda: own(page) == [" who'd"], "the word")
    weights = trace[1].batch(0).head(3)[:].double()
    given = weights[slice(*mine)].mean(0)
    sums = {start: float(given[start:stop].sum()) for start, stop in spans}
    received = weights[:, slice(*mine)].sum(1)
    means = {start: float(received[start:stop].mean()) for start, stop in spans}
    for direction, values in (("out", sums), ("in", means)):
        whole = {start: "".join(texts[start:stop]) for start, stop in spans}
        true = sorted((as_shown(whole[at]), step_of(value)) for at, value in values.items() if step_of(value))
        found = sorted((flat(text), step) for text, step in painted(page, direction).values())
        assert [one for one in found if "🦊" not in one[0]] == [one for one in true if "\\x" not in one[0]]
    page.keyboard.press(".")
    until(page, lambda: own(page) == [" found"], "the next word")


def test_a_click_pins_the_token_under_it_and_a_second_one_lets_go(page: Page, story: Handle) -> None:
    texts = tokens(story)
    page.mouse.click(*box_of(page, "cheese"))
    linked(page)
    at = state(page)["pinQuery"]
    assert texts[at] == " cheese"
    assert state(page)["pinKey"] == at
    assert own(page) == [" cheese"]
    page.mouse.click(*box_of(page, "cheese"))
    until(page, lambda: state(page)["pinQuery"] is None, "nothing pinned")
    assert state(page)["pinKey"] is None
    page.mouse.move(5, 5)
    until(page, lambda: not painted(page, "out") and not own(page), "no paint")
    assert page.locator(".text-links li").count() == 0


def test_pointing_at_a_token_shows_its_links_and_with_none_the_attention_received_is_shaded(
    page: Page, story: Handle, trace: Trace
) -> None:
    texts = tokens(story)
    change(page, layer=1, head=3)
    page.mouse.move(5, 5)
    until(page, lambda: painted(page, "received"), "the attention received")
    assert "attention received" in page.inner_text(".received-legend")
    received = trace[1].batch(0).head(3)[:].double().sum(0).tolist()
    starts = [sum(len(as_shown(text)) for text in texts[:at]) for at in range(12)]
    for at in range(1, 12):  # before the first line end, places in the page are places in the text
        if "\n" in "".join(texts[: at + 1]):
            break
        step = sum(received[at] >= limit for limit in (0.5, 1, 2, 4, 8, 16, 32, 64))
        assert painted(page, "received").get(starts[at], ("", 0))[1] == step
    place = texts.index(" crow")
    page.mouse.move(*box_of(page, "crow"))
    until(page, lambda: own(page) == [" crow"], "the token under the pointer")
    linked(page)
    assert state(page)["pinQuery"] is None, "nothing is pinned by pointing"
    assert not painted(page, "received")
    for direction, side in (("out", "query"), ("in", "key")):
        links = get_json(story, f"1/3/links/{side}/{place}")["links"]
        true = sorted(
            as_shown(texts[start]) for start, _, weight in links if step_of(weight) and "\\x" not in texts[start]
        )
        assert sorted(flat(text) for text, _ in painted(page, direction).values() if "🦊" not in text) == true
    page.mouse.move(5, 5)
    until(page, lambda: painted(page, "received") and not painted(page, "out"), "the attention received again")


def test_a_passage_is_pinned_by_dragging_over_it_or_by_a_click_with_shift(page: Page, story: Handle) -> None:
    texts = tokens(story)
    first, last = texts.index(" found"), texts.index(" cheese")
    page.mouse.click(*box_of(page, "well"))
    query = until(page, lambda: state(page)["pinQuery"], "the query")
    (x, y), (right, below) = box_of(page, "found"), box_of(page, "cheese")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(right, below, steps=4)
    page.mouse.up()
    until(page, lambda: state(page)["pinKeyEnd"] is not None, "the passage")
    pins = state(page)
    assert (pins["pinQuery"], pins["pinKey"], pins["pinKeyEnd"]) == (query, first, last)
    assert page.evaluate("getSelection().toString().length") > 4, "it can be copied as well"
    until(page, lambda: own(page, "key") == ["".join(texts[first : last + 1])], "the passage as the key")
    received = [
        {start: weight for start, _, weight in get_json(story, f"0/0/links/key/{at}")["links"]}
        for at in range(first, last + 1)
    ]
    row = page.locator(".text-links .side-key li >> nth=0")
    at = int(row.locator(".position").inner_text())
    assert number(row.locator(".weight").inner_text()) == pytest.approx(
        sum(one.get(at, 0) for one in received), rel=0.006
    )
    page.mouse.click(*box_of(page, "crow"))
    until(page, lambda: state(page)["pinKey"] == texts.index(" crow") and state(page)["pinKeyEnd"] is None, "one token")
    page.keyboard.down("Shift")
    page.mouse.click(*box_of(page, "found"))
    page.keyboard.up("Shift")
    until(page, lambda: state(page)["pinKeyEnd"] == first, "up to the clicked token")
    assert state(page)["pinKey"] == texts.index(" crow")


@pytest.mark.slow
def test_hovering_tells_the_number_of_a_token_and_its_weights(page: Page, story: Handle) -> None:
    texts = tokens(story)
    place = texts.index(" crow")
    page.mouse.move(*box_of(page, "crow"))
    until(page, lambda: page.is_visible(".text-hint"), "the number")
    assert page.inner_text(".text-hint") == str(place)
    asker = texts.index(" cheese")
    pinned(page, asker)
    weight = next(weight for start, _, weight in get_json(story, f"0/0/links/query/{asker}")["links"] if start == place)
    page.mouse.move(*box_of(page, "met"))
    page.mouse.move(*box_of(page, "crow"))
    said = until(page, lambda: re.search(r"gets (\S+)", page.inner_text(".text-hint")), "the weight")
    assert number(said[1]) == pytest.approx(weight, rel=0.06 if "×" in said[1] else 0.006)
    page.mouse.move(5, 5)
    until(page, lambda: not page.is_visible(".text-hint"), "nothing")


def test_bytes_of_one_character_are_one(page: Page, story: Handle) -> None:
    texts = tokens(story)
    first = next(at for at, text in enumerate(texts) if text.startswith(" \\xf0"))
    count = next(at for at, text in enumerate(texts[first + 1 :], 1) if "\\x" not in text)
    assert count > 1
    page.mouse.move(*box_of(page, "🦊"))
    until(page, lambda: page.inner_text(".text-hint") == f"{first} to {first + count - 1}", "all of its tokens")
    for position in range(first, first + count):
        pinned(page, position)
        until(page, lambda: own(page) == [" 🦊"], "the whole character")


@pytest.mark.slow
def test_a_link_of_the_list_is_followed_and_b_goes_back(page: Page) -> None:
    pinned(page, 60)
    link = page.locator(".text-links .side-query li >> nth=1")
    place = int(link.locator(".position").inner_text())
    link.click()
    until(page, lambda: state(page)["pinQuery"] == place, "the other token")
    assert state(page)["pinKey"] == place
    page.focus(".text-page >> visible=true")
    page.keyboard.press("b")
    until(page, lambda: state(page)["pinQuery"] == 60, "the first one again")


@pytest.mark.slow
def test_the_text_is_read_by_keyboard_alone(browser: Browser, story: Handle) -> None:
    with shown(browser, story.url) as page:
        page.keyboard.press("t")
        reading(page)
        assert page.evaluate("document.activeElement.className") == "text-page"
        assert state(page)["pinQuery"] is None
        page.keyboard.press("Enter")
        linked(page)
        assert state(page)["pinQuery"] == 0
        page.keyboard.press(".")
        page.keyboard.press(".")
        until(page, lambda: state(page)["pinQuery"] == 2, "the third token")
        page.keyboard.press(",")
        until(page, lambda: state(page)["pinQuery"] == 1, "the second token")
        told = until(page, lambda: re.search(r"query 1 '.*' attends most to key (\d+)", spoken(page)), "words")
        assert "is attended most by query" in until(page, lambda: spoken(page), "words")
        until(page, lambda: page.locator(".side-query li").count(), "the links")
        page.keyboard.press("/")
        page.keyboard.type("naïve")
        page.keyboard.press("Enter")
        found = until(page, lambda: state(page)["pinQuery"] > 10 and state(page)["pinQuery"], "the find")
        until(page, lambda: own(page) and own(page)[0].strip() in "naïve", "the word")
        box = page.evaluate("[...CSS.highlights.get('attnscope-own-query')][0].startContainer.parentElement.innerText")
        assert "naïve" in box
        assert page.evaluate("document.activeElement.className") == "text-page"
        linked(page, "query")
        page.keyboard.press("f")
        until(page, lambda: state(page)["pinQuery"] != found, "what it looks at")
        page.keyboard.press("b")
        until(page, lambda: state(page)["pinQuery"] == found, "back")
        page.keyboard.press("Escape")
        until(page, lambda: state(page)["pinQuery"] is None, "nothing pinned")
        page.keyboard.press("Escape")
        until(page, lambda: state(page)["view"] == "map", "the map")
        assert told


def in_view(page: Page) -> str:
    """What stands at the top of the page."""
    return page.evaluate(
        """() => {
          const page = document.querySelector(".text-page:not([hidden])");
          const top = page.getBoundingClientRect().top;
          const all = [...page.querySelectorAll("p")];
          return all.find((one) => one.getBoundingClientRect().bottom > top + 24).textContent;
        }"""
    )


@pytest.mark.slow
def test_arrows_and_page_keys_scroll_and_the_address_keeps_the_place(browser: Browser, story: Handle) -> None:
    with shown(browser, f"{story.url}#1/{identity(story)}/L0H0/text", width=1200, height=620) as page:
        reading(page)
        page.focus(".text-page >> visible=true")
        top = "document.querySelector('.text-page:not([hidden])').scrollTop"
        for key in ("PageDown", "ArrowDown"):
            before = page.evaluate(top)
            page.keyboard.press(key)
            until(page, lambda before=before: page.evaluate(top) > before, "the page to scroll")
        page.wait_for_timeout(1500)  # a page may glide, and the address waits until it rests
        assert "t=" in fragment(page)
        here, link = page.evaluate(top), page.url
        page.keyboard.press("m")
        until(page, lambda: state(page)["view"] == "map", "the map")
        page.keyboard.press("t")
        until(page, lambda: page.is_visible(".text-page >> visible=true"), "the text")
        assert page.evaluate(top) == here
        page.goto("about:blank")
        page.goto(link)
        reading(page)
        line = 31
        until(page, lambda: abs(page.evaluate(top) - here) < line, "the place of the link")


@pytest.mark.slow
def test_parts_can_be_gone_to(browser: Browser, story: Handle) -> None:
    with shown(browser, f"{story.url}#1/{identity(story)}/L0H0/text", width=1200, height=620) as page:
        reading(page)
        until(page, lambda: page.is_visible(".text-sections"), "the parts")
        options = page.locator(".text-sections option").all_inner_texts()
        assert sum("# The fox" in option for option in options) == 6
        page.select_option(".text-sections", index=9)
        name = options[9].partition(" ")[2]
        until(page, lambda: flat(in_view(page)).startswith(name[:20]), "the part")
        assert page.locator(".column [role=heading]").count() == 6


def test_an_unmasked_trace_is_painted_as_well(page: Page, story: Handle) -> None:
    pinned(page, 40, layer=0, head=1)
    ahead = max(painted(page, "out"))
    page.keyboard.press("u")
    until(page, lambda: state(page)["unmasked"], "the question")
    linked(page)
    until(page, lambda: max(painted(page, "out"), default=0) > ahead, "what lies ahead")


def test_without_highlights_the_lists_are_left_and_words_say_so(browser: Browser, story: Handle) -> None:
    with opened(browser, "about:blank", ready=False) as page:
        page.add_init_script("delete window.Highlight; delete CSS.highlights;")
        page.goto(f"{story.url}#1/{identity(story)}/L0H0/text?pin=q30,k30")
        reading(page)
        linked(page)
        assert "cannot highlight" in page.inner_text(".text-note")
        page.mouse.click(*box_of(page, "cheese"))
        until(page, lambda: "cheese attends to" in page.inner_text(".side-query h3"), "the token")


@pytest.mark.slow
def test_nothing_stays_highlighted_when_the_text_is_left(page: Page) -> None:
    pinned(page, 60)
    assert painted(page, "out")
    page.keyboard.press("m")
    until(page, lambda: state(page)["view"] == "map", "the map")
    assert not painted(page, "out")
    assert not own(page)


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious_in_any_look(browser: Browser, story: Handle, size: str) -> None:
    address = f"{story.url}#1/{identity(story)}/L0H0/text?pin=q60,k60"
    with shown(browser, address, **SIZES[size]) as page:
        reading(page)
        linked(page)
        assert violations_in_every_look(page, "text") == {}


@pytest.mark.slow
def test_what_was_let_go_of_on_the_map_is_not_listed_any_more(page: Page) -> None:
    change(page, pinQuery=5, pinKey=5)
    page.wait_for_selector(".text-links .strongest li")
    change(page, view="map", pinQuery=None, pinKey=None)
    change(page, view="text")
    page.wait_for_selector(".text-links .strongest li", state="hidden")
