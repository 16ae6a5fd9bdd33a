"""Heads ablated from the page: its numbers are those of `measure_effect`, and maps show the whole model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, Route

from attnscope.heads import Effect, ablate, measure_effect
from attnscope.recording import Trace, read
from tests.explorer.browser import needs_chromium
from tests.explorer.heads_page import heads_shown, trace_in
from tests.explorer.pages import SENTENCE, change, fragment, in_trouble, shown, smollm2_served, state, until
from tests.explorer.picture import taken
from tests.explorer.serving import Handle
from tests.explorer.test_hostile import HOSTILE, assert_nothing_ran, unsafe_places
from tests.models.smollm2 import own_model

pytestmark = needs_chromium


@cache
def read_trace() -> Trace:
    """What SmolLM2 attends to in 48 tokens."""
    model, tokenizer = own_model()
    return read(model, 4 * SENTENCE, tokenizer, progress=False)


@pytest.fixture(scope="module")
def book() -> Iterator[Handle]:
    """SmolLM2, and what it has read."""
    with smollm2_served(read_trace()) as handle:
        yield handle


@cache
def effect_of(heads: tuple[tuple[int, int], ...], how: Literal["zero", "mean"] = "zero") -> Effect:
    """What ablating some heads does, found without the page."""
    model, _ = own_model()
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    ids = read_trace().ids(0)[1]
    assert ids is not None
    return measure_effect(model, ids, ablate(model, by_layer, how))


def pairs(page: Page) -> list[list[tuple[str, float, float]]]:
    """The three lists of the panel: loss, next tokens, harder tokens; each (name, before, after)."""
    lists = page.evaluate(
        """() => [...document.querySelectorAll(".ablation .pairs")].map((list) => [...list.children].map((item) =>
             [[...item.children].slice(0, -2).map((one) => one.innerText).join(""), item.lastChild.innerText]))"""
    )
    return [[(name, *map(float, numbers.split(" → "))) for name, numbers in rows] for rows in lists]  # type: ignore[misc]


def assert_is(page: Page, true: Effect) -> None:
    """All numbers of the panel are those of an effect, to the digits that are shown."""
    until(page, lambda: len(pairs(page)) == 3, "the effect")
    (loss,), following, harder = pairs(page)
    before, after = true.before.losses[0], true.after.losses[0]
    assert loss[1:] == pytest.approx((float(before.mean()), float(after.mean())), abs=0.0006)
    change = float(after.mean() - before.mean())
    shown = page.inner_text(".ablation h4 >> nth=0").split(": ")[1].replace("−", "-")
    assert float(shown) == pytest.approx(change, abs=0.0006)
    expected = true.next_tokens(10)
    assert [row[1:] for row in following] == [
        pytest.approx((one.before, one.after), abs=0.0006)
        for one in expected
        if max(one.before, one.after) >= 0.0005  # rounded to zero, it is not listed
    ]
    rises = [at for at in (after - before).topk(10).indices.tolist() if after[at] > before[at]]
    assert [int(re.sub(r"^.* ", "", row[0])) for row in harder] == [at + 1 for at in rises]
    assert [row[1:] for row in harder] == [
        pytest.approx((float(before[at]), float(after[at])), abs=0.006) for at in rises
    ]
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.ablation .pair')].map((one) => [...one.children].map((bar) =>"
        " bar.getBoundingClientRect().width / one.getBoundingClientRect().width))"
    )
    rows = [[loss], following, harder]
    most = [max(max(row[1:]) for row in part) if part else 1 for part in rows]
    for bars, (value, top) in zip(
        widths, [(row[1:], top) for part, top in zip(rows, most, strict=True) for row in part], strict=True
    ):
        assert bars == pytest.approx([one / top for one in value], abs=0.02)


def test_ablating_the_head_on_the_map_shows_what_effect_says(browser: Browser, book: Handle) -> None:
    with shown(browser, f"{book.url}#1/{trace_in(book)}/L0H3/map") as page:
        whole = page.evaluate("() => document.querySelector('canvas.map-heat').toDataURL()")
        page.get_by_label("Ablate this head, L0H3").check()
        assert_is(page, effect_of(((0, 3),)))
        assert state(page)["ablated"] == [[0, 3]]
        assert "maps still show the full model" in page.inner_text(".ablation")
        assert page.evaluate("() => document.querySelector('canvas.map-heat').toDataURL()") == whole
        page.get_by_role("group", name="Ablation method").get_by_text("output its mean", exact=True).click()
        until(page, lambda: "Running without" in page.inner_text(".ablation"), "another question")
        assert_is(page, effect_of(((0, 3),), "mean"))
        until(page, lambda: "abl=L0H3" in fragment(page) and "how=mean" in fragment(page), "the address")
        page.click("text=Restore all")
        until(page, lambda: not pairs(page), "nothing ablated")
        assert not page.get_by_label("Ablate this head, L0H3").is_checked()
        assert state(page)["ablated"] == []


@pytest.mark.slow
def test_heads_ablated_in_the_table_add_up_and_one_can_be_restored(browser: Browser, book: Handle) -> None:
    with heads_shown(browser, book, "as=table") as page:
        page.get_by_label("Ablate L0H3", exact=True).check()
        page.get_by_label("Ablate L1H5", exact=True).focus()
        page.keyboard.press("Space")
        assert state(page)["view"] == "heads", "a switch does not open the map"
        assert state(page)["ablated"] == [[0, 3], [1, 5]]
        assert_is(page, effect_of(((0, 3), (1, 5))))
        page.click("[aria-label='Restore L0H3']")
        until(page, lambda: "Running without" in page.inner_text(".ablation"), "another question")
        assert_is(page, effect_of(((1, 5),)))
        assert not page.get_by_label("Ablate L0H3", exact=True).is_checked()


@pytest.mark.slow
def test_a_link_to_ablated_heads_gives_the_same_numbers(browser: Browser, book: Handle) -> None:
    with shown(browser, f"{book.url}#1/{trace_in(book)}/L5H0/text?abl=L0H3,L1H5&how=mean") as page:
        assert_is(page, effect_of(((0, 3), (1, 5)), "mean"))


@pytest.mark.slow
def test_a_harder_token_leads_to_the_query_that_predicts_it(browser: Browser, book: Handle) -> None:
    with heads_shown(browser, book, "as=table&abl=L0H3") as page:
        until(page, lambda: len(pairs(page)) == 3, "the effect")
        position = int(pairs(page)[2][0][0].split()[-1])
        page.click(".ablation .pairs button >> nth=0")
        until(page, lambda: state(page)["view"] == "map", "the map")
        assert state(page)["pinQuery"] == position - 1
        until(page, lambda: page.is_visible(".side-query"), "the query")


def test_without_a_model_the_switches_are_off_and_say_why(browser: Browser, small: Handle) -> None:
    with heads_shown(browser, small, "as=table") as page:
        assert page.locator(".ablation input").is_disabled()
        assert "the model of this text is not loaded" in page.inner_text(".ablation")
        assert page.get_by_label("Ablate L0H3", exact=True).is_disabled()


def test_a_refusal_is_told_in_the_servers_words(browser: Browser, book: Handle) -> None:
    said = "expected a trace of a small model"

    def refuse(route: Route) -> None:
        route.fulfill(status=400, content_type="application/json", body=json.dumps({"error": said}))

    with in_trouble(browser, book.url) as page:
        page.wait_for_selector("html[data-state=ready]", state="attached")
        page.route("**/ablate", refuse)
        change(page, ablated=[[0, 0]])
        until(page, lambda: said in page.inner_text(".ablation"), "the words")


def test_at_most_64_heads_are_ablated(browser: Browser, book: Handle) -> None:
    many = [[layer, head] for layer in range(8) for head in range(8)]
    with heads_shown(browser, book, "as=table") as page:
        page.route("**/ablate", lambda _: None)  # left without an answer
        change(page, ablated=many)
        page.get_by_label("Ablate L9H0", exact=True).click()
        until(page, lambda: "At most 64" in page.inner_text(".notice"), "the notice")
        assert len(state(page)["ablated"]) == 64
        assert not page.get_by_label("Ablate L9H0", exact=True).is_checked()


def test_hostile_tokens_in_an_effect_are_shown_as_text(browser: Browser, book: Handle) -> None:
    told = {
        "tokens": 9,
        "loss": [1.0, 2.0],
        "harder": [[place + 1, text, 0.5, 1.0] for place, text in enumerate(HOSTILE[:10])],
        "next": [[text, 0.25, 0.5] for text in HOSTILE[10:20]],
    }
    with shown(browser, book.url) as page:
        page.route("**/ablate", lambda route: route.fulfill(content_type="application/json", body=json.dumps(told)))
        change(page, ablated=[[0, 0]])
        until(page, lambda: len(pairs(page)) == 3, "the effect")
        assert unsafe_places(page) == []
        assert_nothing_ran(page)
        assert page.evaluate("document.querySelector('.inspector').scrollWidth") <= page.evaluate(
            "document.querySelector('.inspector').clientWidth"
        )


@pytest.mark.slow
def test_the_map_is_the_same_while_heads_are_ablated(browser: Browser, book: Handle) -> None:
    length = read_trace()[0].shape[-1]
    with shown(browser, f"{book.url}#1/{trace_in(book)}/L0H3/map") as page:
        before = taken(page, length, length).pixels
        change(page, ablated=[[0, 3]])
        until(page, lambda: len(pairs(page)) == 3, "the effect")
        assert (taken(page, length, length).pixels == before).all()


def test_heads_of_the_example_cannot_be_ablated_for_it_is_of_another_model(browser: Browser, book: Handle) -> None:
    example = book.get("/api/1/session").json["example"]
    if example is None:
        pytest.skip("this build has no example")
    with shown(browser, f"{book.url}#1/{example}/L0H0/map?abl=L0H0") as page:
        assert page.locator(".ablation input").is_disabled()
        assert "the model of this text is not loaded" in page.inner_text(".ablation")
        change(page, view="heads", headsAs="table")
        until(page, lambda: page.locator(".heads-table tbody input").count(), "the table")
        assert page.locator(".heads-table tbody input >> nth=0").is_disabled()
