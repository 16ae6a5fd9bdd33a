"""The evidence panel: its numbers are those of the model, and words are shown in their context."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page, Route

from attnscope.attention.rotary import Rotary
from attnscope.explorer.library.library import Library
from attnscope.recording import Trace, read
from tests.explorer.browser import needs_chromium
from tests.explorer.model_sessions import CHARACTERS, make_session, small
from tests.explorer.pages import change, drawn, focus_map, shown, state, until
from tests.explorer.reading import number
from tests.explorer.serving import Handle, serving

pytestmark = needs_chromium

TEXT = "the dog that bit the man fled and the man that the dog bit fled too."
LAYER, HEAD, QUERY, KEY = 1, 2, 44, 17
MODEL = small(position_encoding=Rotary(dim=8, layout="half"))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read(MODEL, TEXT, CHARACTERS, values=True, progress=False)


@pytest.fixture(scope="module")
def served(trace: Trace) -> Iterator[Handle]:
    library = Library()
    library.add(trace, name="a dog")
    with serving(library, make_session(MODEL), page=True) as handle:
        yield handle


@pytest.fixture
def page(browser: Browser, served: Handle) -> Iterator[Page]:
    trace_id = served.get("/api/1/session").json["traces"][0]["trace"]
    address = f"{served.url}#1/{trace_id}/L{LAYER}H{HEAD}/map?pin=q{QUERY},k{KEY}"
    with shown(browser, address) as page:
        until(page, lambda: page.is_visible(".cell-panel .weight-large"), "the pinned cell")
        yield page


def weights_of(trace: Trace, layer: int = LAYER, head: int = HEAD) -> torch.Tensor:
    return trace[layer].batch(0).head(head)[:].double()


def is_shown(told: str, value: float) -> bool:
    """Whether a number as people read it is a value, to the digits that are shown."""
    return number(told) == pytest.approx(value, rel=0.06 if "×" in told else 0.006)


def test_the_link_is_told_in_words_with_both_passages_and_the_heads_that_have_it(page: Page, trace: Trace) -> None:
    weight = float(weights_of(trace)[QUERY, KEY])
    assert is_shown(page.inner_text(".cell-panel .weight-large"), weight)
    assert f", {QUERY - KEY} tokens back" in page.inner_text(".cell-panel h3")
    for side, position in (("query", QUERY), ("key", KEY)):
        passage = until(page, lambda side=side: page.inner_text(f".side-{side} .passage"), "the passage")
        assert TEXT[position - 15 : position] in passage
        assert TEXT[position + 1 : position + 15] in passage
        assert page.inner_text(f".side-{side} .passage .kwic-token") == TEXT[position]
    rows = page.locator(".side-query .strongest li")
    until(page, rows.count, "the strongest keys")
    position = int(rows.nth(1).locator(".position").inner_text())
    around = rows.nth(1).locator(".kwic").text_content() or ""
    assert TEXT[position : position + 4] in around
    assert page.locator(".kwic-token").first.evaluate("one => one.scrollWidth <= one.clientWidth + 1")
    by_head = {(at, head): float(weights_of(trace, at, head)[QUERY, KEY]) for at in range(3) for head in range(4)}
    order = sorted(by_head, key=lambda one: -by_head[one])
    listed = page.locator(".heads-with-link li")
    until(page, lambda: listed.count() == 5, "the heads with this link")
    for row, (layer, head) in zip(listed.all(), order, strict=False):
        name, _, told = row.locator("button > *").all_inner_texts()[:3]
        assert name == f"L{layer}H{head}"
        assert is_shown(told, by_head[layer, head])
    listed.nth(0).locator("button").click()
    until(page, lambda: (state(page)["layer"], state(page)["head"]) == order[0], "the head")
    assert state(page)["pinKey"] == KEY, "with the same link"


def test_links_that_are_practically_zero_are_not_listed_and_numbers_are_written_in_one_way(page: Page) -> None:
    def shrink(route: Route) -> None:
        report = route.fetch().json()
        report |= {"entropy": 3.24e-7, "strongest": [*report["strongest"][:2], [3, 3.1e-6], [2, 9.9e-7], [1, 1e-12]]}
        route.fulfill(content_type="application/json", body=json.dumps(report))

    page.route("**/query/40", shrink)
    change(page, pinQuery=40, pinKey=None)
    until(page, lambda: "3.2×10⁻⁷ nats" in page.inner_text(".side-query .facts"), "the report")
    told = page.locator(".side-query .strongest .weight").all_inner_texts()
    assert len(told) == 3
    assert told[-1] == "3.1×10⁻⁶"


# Of each passage: whether its text before the token is cut, whether a sign says so, and the room left of its row.
CUT_BEFORE = """() => [...document.querySelectorAll(".side-query .strongest .kwic > :first-child")].map((before) => {
  const { display, textOverflow, direction } = getComputedStyle(before);
  const row = before.closest("button"), room = before.getBoundingClientRect().left - row.getBoundingClientRect().left;
  const says = textOverflow === "ellipsis" && display !== "flex" && direction === "rtl";
  return [before.scrollWidth > before.clientWidth + 1, says, room];
})"""


def test_passages_that_are_cut_say_so_and_the_mark_of_a_row_leaves_its_text_free(page: Page) -> None:
    until(page, page.locator(".side-query .strongest .kwic").count, "the strongest keys")
    page.evaluate("document.querySelector('.inspector').style.width = '180px'")
    rows = page.evaluate(CUT_BEFORE)
    assert any(cut for cut, _, _ in rows)
    assert all(says for cut, says, _ in rows if cut)
    assert min(room for _, _, room in rows) >= 4


def test_a_span_has_the_sum_of_its_weights(page: Page, trace: Trace) -> None:
    change(page, pinKey=4, pinKeyEnd=19)
    until(page, lambda: "the sum over 16 keys" in page.inner_text(".cell-panel"), "the span")
    assert is_shown(page.inner_text(".cell-panel .weight-large"), float(weights_of(trace)[QUERY, 4:20].sum()))
    assert page.inner_text(".side-key .kwic-token") == TEXT[4:20].strip()
    change(page, pinQuery=30, pinQueryEnd=33, pinKey=4, pinKeyEnd=19)
    until(page, lambda: "mean of 4 queries" in page.inner_text(".cell-panel"), "the span of queries")
    assert is_shown(page.inner_text(".cell-panel .weight-large"), float(weights_of(trace)[30:34, 4:20].sum(1).mean()))


def test_predictions_are_those_of_the_model_and_say_whether_it_is_the_key(page: Page) -> None:
    ids = torch.tensor([CHARACTERS.encode(TEXT)])
    with torch.no_grad():
        chances = MODEL(ids)[0].log_softmax(-1)
    best = chances[QUERY].exp().topk(5)
    rows = page.locator(".predicted li")
    until(page, lambda: rows.count() == 5, "the predictions")
    for row, chance, token in zip(rows.all(), best.values.tolist(), best.indices.tolist(), strict=True):
        assert row.locator(".token").inner_text() == CHARACTERS.decode([token]).replace(" ", "·")
        told = row.locator(".weight").inner_text()
        assert told == "<0.1%" or float(told.rstrip("%")) == pytest.approx(100 * chance, abs=0.51)
    surprise = -float(chances[QUERY - 1, ids[0, QUERY]])
    said = re.search(r"This token had a surprise of (\S+) nats", page.inner_text(".predictions"))
    assert said
    assert float(said[1]) == pytest.approx(surprise, rel=0.006)
    assert "does not predict the pinned key" in page.inner_text(
        ".says-it"
    ) or "predicts the pinned key" in page.inner_text(".says-it")
    named = CHARACTERS.decode([best.indices[0].item()])
    places = [at for at in range(QUERY) if TEXT[at] == named]
    if places and named.strip():
        change(page, pinKey=places[0])
        until(page, lambda: "The model predicts the pinned key, with" in page.inner_text(".says-it"), "the answer")


def test_the_steps_of_a_weight_are_those_of_the_softmax_and_of_its_value(page: Page, trace: Trace) -> None:
    page.click(".why summary")
    until(page, lambda: page.locator(".why-steps dd").count() >= 5, "the steps")
    steps = dict(
        zip(
            page.locator(".why-steps dt").all_inner_texts(),
            page.locator(".why-steps dd").all_inner_texts(),
            strict=True,
        )
    )
    weight = float(weights_of(trace)[QUERY, KEY])
    dot, scale, product = re.fullmatch(r"(\S+) × (\S+) = (\S+)", steps["× scale"]).groups()  # type: ignore[union-attr]
    assert float(scale) == pytest.approx(8**-0.5, rel=0.005)
    assert float(product) == pytest.approx(float(dot) * float(scale), rel=0.02)
    assert is_shown(steps["softmax"].split(" = ")[1], weight)
    told_weight, norm, result = re.fullmatch(r"(\S+) × (\S+) = (\S+)", steps["× |v|"]).groups()  # type: ignore[union-attr]
    assert is_shown(told_weight, weight)
    assert number(result) == pytest.approx(weight * float(norm), rel=0.06)
    address = f"#stage=trace&trace={state(page)['trace']}&layer={LAYER}&head={HEAD}&query={QUERY}&key={KEY}"
    assert page.get_attribute(".why a", "href") == f"/steps{address}"
    bars = page.locator(".frequencies rect")
    assert bars.count() == 4, "half as many as a head has components"
    # The same values weigh the strongest keys of the query.
    page.click("summary:has-text('Weight × |v|')")
    listed = page.locator(".side-query details .strongest li")
    until(page, listed.count, "the weighted keys")
    found = [number(one) for one in page.locator(".side-query details .weight").all_inner_texts()]
    assert found == sorted(found, reverse=True)
    at = (
        page.locator(".side-query details .position")
        .all_inner_texts()
        .index(str(int(weights_of(trace)[QUERY].argmax())))
    )
    assert found[at] > 0


def test_the_place_on_the_map_is_kept_while_the_text_is_read(page: Page) -> None:
    focus_map(page)
    change(page, centre={"query": 40, "key": 20}, zoom=24)
    drawn(page)
    page.keyboard.press("t")
    page.wait_for_selector(".text-view[data-state=ready]")
    page.wait_for_timeout(500)  # longer than a page that has scrolled waits until it tells
    page.keyboard.press("m")
    until(page, lambda: state(page)["view"] == "map", "the map")
    drawn(page)
    assert state(page)["centre"] == {"query": 40, "key": 20}
    assert state(page)["zoom"] == 24


def test_ablation_lists_no_rows_of_zeros_and_can_be_stopped(page: Page) -> None:
    told = {
        "tokens": 9,
        "loss": [1.0, 2.0],
        "harder": [[3, "a", 0.5, 1.0], [4, "b", 0.0001, 0.0002]],
        "next": [["x", 0.25, 0.5], ["y", 0.0001, 0.0002], ["z", 0.0, 0.0], ["w", 0.0001, 0.3]],
    }

    def answer(route: Route) -> None:
        route.fulfill(content_type="application/json", body=json.dumps(told))

    page.route("**/ablate", answer)
    change(page, ablated=[[0, 0]])
    until(page, lambda: page.locator(".ablation .pairs").count() == 3, "the effect")
    assert [text.split("\n")[-1] for text in page.locator(".ablation .pairs li").all_inner_texts()] == [
        "1.000 → 2.000",
        "0.250 → 0.500",
        "0.000 → 0.300",
        "0.50 → 1.00",
    ]
    page.unroute("**/ablate")
    page.route("**/ablate", lambda _: None)  # left without an answer
    change(page, ablated=[[0, 1]])
    page.click(".ablation button:text-is('Stop')")
    until(page, lambda: "Stopped." in page.inner_text(".ablation"), "the end")
    assert not page.is_visible(".ablation button:text-is('Stop')")
