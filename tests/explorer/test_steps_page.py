"""The page "One attention weight, step by step", opened from disk in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope import attend
from attnscope.explorer.library.example import example
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer
from tests.explorer.browser import WATCH_POLICY, needs_chromium
from tests.explorer.model_sessions import make_session, small
from tests.explorer.pages import in_trouble, shown, until
from tests.explorer.serving import Handle, serving, small_trace
from tests.explorer.test_access import needs_axe, violations_in_every_look
from tests.steps.example_data import decode_blocks, example_data

pytestmark = needs_chromium
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "_static" / "one_weight.html").as_uri()


@contextmanager
def from_disk(browser: Browser, fragment: str = "", **options: Any) -> Iterator[Page]:
    """The page from disk; it asks for nothing else, and nothing is wrong."""
    problems: list[str] = []
    requested: set[str] = set()
    with browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options}) as context:
        page = context.new_page()
        page.add_init_script(WATCH_POLICY)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requested.add(request.url.partition("#")[0]))
        page.goto(PAGE + fragment)
        page.wait_for_selector("html[data-state=ready]", state="attached")
        yield page
        problems += page.evaluate("window.breaches")
    assert problems == []
    assert requested - {"data:,"} == {PAGE}


def result(page: Page, name: str) -> float:
    return float(page.inner_text(f"[data-result={name}]").replace("−", "-"))


def row_label(page: Page) -> list[str]:
    return page.locator(".pattern tbody th").all_inner_texts()


def weights(page: Page) -> list[list[float]]:
    cells = page.locator(".pattern tbody tr").all()
    return [[float(text or 0) for text in row.locator("td").all_inner_texts()] for row in cells]


def numbers(page: Page, name: str, row: int = 0) -> list[float]:
    """A row of numbers as computed, not as rounded for the page."""
    columns = page.locator(f"[aria-label='{name}'] .number-column").all()
    return [float(one.locator(".number").nth(row).get_attribute("title") or "nan") for one in columns]


def test_three_tokens_by_hand_with_predictions_by_mouse_and_keyboard(browser: Browser) -> None:
    with from_disk(browser) as page:
        assert page.locator(".step").count() == 2, "a step waits for its prediction"
        page.click("button:text-is('positive')")
        assert "Right: positive" in page.inner_text("[data-step=products]")
        assert result(page, "dot") == 1
        page.click("[data-step=scale] button:text-is('larger')")
        assert 'right is "smaller"' in page.inner_text("[data-step=scale]")
        assert result(page, "score") == pytest.approx(0.707, abs=5e-4)
        page.focus("[data-step=mask] button:text-is('3')")
        page.keyboard.press("Enter")
        assert result(page, "masked") == pytest.approx(0.707, abs=5e-4)
        page.click("[data-step=exponential] button:text-is('several are equal')")
        assert result(page, "exponential") == pytest.approx(2.028, abs=5e-4)
        assert "5.056" in page.inner_text("[data-step=exponential]")
        assert page.inner_text(".pattern .chosen td >> nth=0") == "?", "the row is to be predicted"
        page.focus("[data-step=weight] input")
        for _ in range(10):
            page.keyboard.press("ArrowLeft")
        page.click("[data-step=weight] >> text=Check")
        assert "You predicted 0.40; it is 0.401" in page.inner_text("[data-step=weight]")
        assert weights(page)[0] == [0.4, 0.2, 0.4]
        page.click("[data-step=values] >> text=Show without a prediction")
        assert numbers(page, "Output of the head") == pytest.approx([6.0166, 3.9834], abs=1e-4)
        page.click("[data-step=output] >> text=Show without a prediction")
        assert numbers(page, "Output") == pytest.approx([6.0166, 3.9834], abs=1e-4)
        assert page.get_attribute("[data-step=scale] .claim a", "href") == "../labs/scaling.html"
        claim = page.inner_text("[data-step=weight] .claim")
        assert claim.startswith("Claim 5: In self-attention a token always pays the most attention to itself.")
        assert claim.endswith("Verdict of the lab worked_examples: does not hold.")
        page.focus(".pattern [aria-selected=true]")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert result(page, "weight") == pytest.approx(0.503, abs=5e-4), "the third row, which a text prints as 0.448"
        assert page.evaluate("location.hash") == "#stage=hand&query=2&key=2"


def test_every_setting_changes_the_three_tokens_as_it_should(browser: Browser) -> None:
    inputs, values = torch.tensor([[1.0, 0], [0, 1], [1, 1]]), torch.tensor([[10.0, 0], [0, 10], [5, 5]])
    with from_disk(browser, "#stage=hand&query=2&key=2") as page:
        page.click("text=Show all steps")
        page.uncheck("text=divide by")
        assert result(page, "weight") == pytest.approx(0.576, abs=5e-4)
        page.check("text=divide by")
        page.focus("[aria-label=Settings] input[type=range]")
        page.keyboard.press("Home")
        assert result(page, "weight") == pytest.approx(0.895, abs=2e-3), "temperature 0.25"
        for _ in range(8):
            page.keyboard.press("ArrowRight")
        page.click("button:text-is('causal')")
        assert weights(page)[0] == [1, 0, 0]
        page.click("text=cross-attention")
        assert len(weights(page)[0]) == 2
        page.click("text=bidirectional")
        page.select_option("[aria-label=d_k]", "8")
        assert result(page, "score") == pytest.approx(2 / 8**0.5, abs=5e-4)
        page.select_option("[aria-label=d_k]", "2")
        page.click("text=Shuffle tokens")
        order = [int(label.removeprefix("x")) - 1 for label in row_label(page)]
        assert order != [0, 1, 2]
        shuffled = attend(inputs[order], inputs[order], values[order])
        assert numbers(page, "Output of the head") == pytest.approx(shuffled[2].tolist(), abs=1e-5)
        page.select_option("text=positions", "sinusoidal")
        assert numbers(page, "Output of the head") != pytest.approx(shuffled[2].tolist(), abs=1e-3)
        page.click("text=Original order")
        page.select_option("text=positions", "none")
        page.select_option("[aria-label=heads]", "2")
        assert page.inner_text("[data-step=scale] .result").startswith("Divided by √1")
        assert len(numbers(page, "Concatenated heads")) == 2
        page.select_option("[aria-label=heads]", "1")
        page.click("[aria-label='Query and key'] button >> nth=0")  # by mouse: the first number of q
        page.keyboard.type("3")
        page.keyboard.press("Enter")
        assert result(page, "dot") == 4
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")  # by keyboard: the first number of k
        page.keyboard.type("-2")
        page.keyboard.press("Enter")
        assert result(page, "dot") == -5
        page.click("text=Undo 2 edits")
        assert result(page, "dot") == 2


def test_a_typed_sentence_without_a_model(browser: Browser) -> None:
    with from_disk(browser, "#stage=sentence") as page:
        assert "No trained model is involved" in page.inner_text("main")
        page.click("text=Show all steps")
        assert row_label(page) == ["the", "dog", "that", "bit", "the", "man", "fled"]
        assert all(sum(row) == pytest.approx(1, abs=0.05) for row in weights(page))
        assert weights(page)[0] == weights(page)[4], "the same word, and no positions"
        page.select_option("text=positions", "rotary")
        assert weights(page)[0] != weights(page)[4]
        page.click(".pattern tbody th >> nth=2")
        assert page.inner_text(".pattern tr.chosen th") == "that"
        page.click("[data-pair='5/1']")
        assert "The query of man is compared with the key of dog" in page.inner_text(".step >> nth=0")
        page.click("button:text-is('causal')")
        assert all(cell == 0 for at, row in enumerate(weights(page)) for cell in row[at + 1 :])
        page.fill(
            "input[name=sentence]", "<b>one</b> two three four five six seven eight nine ten eleven twelve thirteen"
        )
        page.keyboard.press("Enter")
        until(page, lambda: len(row_label(page)) == 12, "twelve words at most")
        assert row_label(page)[0] == "<b>one</b>"
        page.select_option("text=or a preset", "time flies like an arrow")
        page.select_option("[aria-label=d_k]", "64")
        page.select_option("[aria-label=heads]", "4")
        assert len(numbers(page, "Concatenated heads")) == 16
        page.click("text=cross-attention")
        page.fill("input[name=memory]", "uno dos")
        page.keyboard.press("Enter")
        until(page, lambda: len(weights(page)[0]) == 2, "keys of another sentence")


def test_a_head_of_a_trained_model_has_the_weights_of_the_shipped_trace(browser: Browser) -> None:
    trace = example()
    layers = {"layer 16, head 0": (2, 0), "layer 17, head 4": (3, 0), "layer 5, head 6": (1, 0)}
    with from_disk(browser, "#stage=model&query=31&key=30") as page:
        page.click("text=Show all steps")
        names = page.locator("[aria-label='shown head'] option").all_inner_texts()
        assert [name.split(":")[0] for name in names] == list(layers)
        for index, (layer, head) in enumerate(layers.values()):
            page.select_option("[aria-label='shown head']", str(index))
            row = numbers(page, "All keys: exp, weight", 1)
            assert row == pytest.approx(trace[layer].batch(0).head(head)[31].tolist(), abs=1e-4)
            added = page.eval_on_selector_all("[aria-label=Output] .number", "cells => cells.map((one) => +one.title)")
            output = torch.tensor(numbers(page, "Output of the head"), dtype=torch.float64)
            expected = decode_blocks(example_data()["heads"][index]["output"]) @ output
            assert added == pytest.approx(expected.tolist(), abs=1e-5)
        bars = page.locator(".next-tokens li").all_inner_texts()
        assert re.fullmatch(r"for\s+99%", bars[0])
        page.focus("[data-step=next] input >> nth=1")
        page.keyboard.press("ArrowRight")  # top-k of 1
        bars = page.locator(".next-tokens li").all_inner_texts()
        assert re.fullmatch(r"for\s+100%", bars[0])
        assert "removed" in bars[1]


FRAGMENTS = sorted(
    {
        fragment.replace("&amp;", "&")
        for path in (ROOT / "docs").rglob("*.md")
        for fragment in re.findall(r"one_weight\.html(#[^\"`]+)", path.read_text(encoding="utf-8"))
    }
)


def test_links_of_the_docs_open_what_they_name(browser: Browser) -> None:
    assert len(FRAGMENTS) >= 10
    with from_disk(browser) as page:
        for fragment in FRAGMENTS:
            page.evaluate("fragment => { location.hash = `${fragment}&from=docs`; }", fragment)
            until(page, lambda: "from=docs" not in page.evaluate("location.hash"), f"{fragment} as the page writes it")
            assert set(parse_qsl(fragment[1:])) <= set(parse_qsl(page.evaluate("location.hash")[1:]))


def test_the_last_of_several_addresses_is_opened(browser: Browser) -> None:
    """Also if the page writes its own for an earlier one while the event of the last is on its way."""
    with from_disk(browser) as page:
        page.evaluate(
            """() => {
                const last = "#stage=sentence&d_k=64&divide=no";
                const before = history.replaceState;
                history.replaceState = function (...given) {
                    history.replaceState = before;
                    location.hash = last; // its event comes later
                    before.apply(this, given);
                };
                location.hash = "#stage=sentence";
            }"""
        )
        until(page, lambda: "d_k=64" in page.evaluate("location.hash"), "the last address")
        assert page.get_attribute("[aria-label=Stages] >> text=2.", "aria-pressed") == "true"


@pytest.mark.parametrize("width", [1440, 390])
@needs_axe
def test_axe_finds_nothing_serious_and_nothing_is_cut(browser: Browser, width: int) -> None:
    found: dict[str, list[str]] = {}
    for stage in ("hand", "sentence", "model"):
        with from_disk(browser, f"#stage={stage}", viewport={"width": width, "height": 720}, bypass_csp=True) as page:
            if stage == "hand":
                found |= violations_in_every_look(page, "first")
            page.click("text=Show all steps")
            found |= violations_in_every_look(page, stage)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert found == {}


def test_the_explorer_serves_the_page(browser: Browser) -> None:
    with serving(small_trace(), page=True) as handle:
        assert handle.get("/steps", authorization="").status == 200
        with shown(browser, f"{handle.base}/steps#stage=sentence") as page:
            page.click("text=Show all steps")
            assert "attnscope lab run scaling" in page.inner_text("[data-step=scale]")


LAYER, HEAD, QUERY, KEY = 1, 2, 25, 7


@pytest.fixture(scope="module")
def pinned() -> Iterator[tuple[Handle, Trace]]:
    """The server of a model with a trace of it, which has values."""
    session = make_session(small(torch.float32))
    trace = session.run("the dog that bit the man fled")
    with serving(trace, session, page=True) as handle:
        yield handle, trace


@contextmanager
def pinned_steps(browser: Browser, handle: Handle, key: int = KEY, **options: Any) -> Iterator[Page]:
    """The page of steps with a pair of the trace."""
    trace_id = handle.get("/api/1/session").json["traces"][0]["trace"]
    address = f"#stage=trace&trace={trace_id}&layer={LAYER}&head={HEAD}&query={QUERY}&key={key}"
    token = handle.url.partition("#")[2]
    with shown(browser, f"{handle.base}/steps#{token}{address}", opening=True, **options) as page:
        page.wait_for_selector(".trace-keys")
        yield page


def test_a_pinned_pair_of_a_trace_is_computed_from_its_vectors(browser: Browser, pinned: tuple[Handle, Trace]) -> None:
    handle, trace = pinned
    weights = trace[LAYER].batch(0).head(HEAD)[QUERY]
    recorded = trace.layers[f"blocks.{LAYER}.attention"]
    assert isinstance(recorded, Layer)
    call = recorded.merge_calls()
    assert call.value is not None
    trace_id = handle.get("/api/1/session").json["traces"][0]["trace"]
    with shown(browser, f"{handle.url}#1/{trace_id}/L{LAYER}H{HEAD}/map?pin=q{QUERY},k{KEY}") as page:
        page.click(".why summary")
        page.click(".why a")
        page.wait_for_selector(".trace-keys")
        assert page.locator(".trace-keys .next-share").first.inner_text() == "?", "the weights are to be predicted"
        page.click("[data-step=products] >> text=Show without a prediction")
        dot = float(call.query[0, HEAD, QUERY] @ call.key[0, HEAD // 2, KEY])
        assert result(page, "dot") == pytest.approx(dot, abs=1e-3)
        page.click("text=Show all steps")
        shown_weight = float(page.get_attribute("[data-result=weight]", "title") or "nan")
        assert shown_weight == pytest.approx(float(weights[KEY]), abs=1e-6)
        row = numbers(page, "All keys: exp, weight", 1)
        names = page.locator(".trace-keys button").all_inner_texts()
        positions = [int(name.split()[0]) for name in names]
        assert row[: len(positions)] == pytest.approx(weights[positions].tolist(), abs=1e-6)
        rest = float(weights.double().sum() - weights[positions].double().sum())
        assert "all 18 other keys" in page.inner_text(".trace-keys")
        assert row[len(positions) :] == [pytest.approx(rest, abs=1e-6)]
        output = weights @ call.value[0, HEAD // 2]
        assert numbers(page, "Output of the head") == pytest.approx(output.tolist(), abs=1e-5)
        added = handle.get(f"/api/1/{trace_id}/{LAYER}/{HEAD}/projection?query={QUERY}").json["output"]
        page.click("summary:has-text('Added to the residual stream')")
        assert numbers(page, "Added to the residual stream") == pytest.approx(added, abs=1e-6)
        page.click(".trace-keys button >> nth=0")
        until(page, lambda: f"key={positions[0]}" in page.evaluate("location.hash"), "another key")
        assert result(page, "weight") == pytest.approx(float(weights[positions[0]]), abs=5e-4)
        page.click("text=1. Three tokens by hand")
        assert page.evaluate("location.hash").startswith("#stage=hand")
        page.click("text=4. Your model")
        page.click("text=Back to the map")
        until(page, lambda: page.is_visible(".cell-panel .weight-large"), "the pinned cell")


def test_a_masked_key_and_a_trace_that_is_not_open(browser: Browser, pinned: tuple[Handle, Trace]) -> None:
    handle, _ = pinned
    with pinned_steps(browser, handle, key=28) as page:
        page.click("text=Show all steps")
        assert page.inner_text("[data-result=masked]") == "−∞"
        assert result(page, "weight") == 0
        assert "The mask allows 26 of 29 keys" in page.inner_text("[data-step=mask]")
    with in_trouble(browser, f"{handle.url}") as page:
        page.wait_for_selector("html[data-state=ready]", state="attached")
        page.goto(f"{handle.base}/steps#stage=trace&trace={'0' * 16}&layer=0&head=0&query=3&key=2")
        until(page, lambda: "is not open here" in page.inner_text("main"), "the reason")


@pytest.mark.parametrize("width", [1440, 390])
@needs_axe
def test_axe_finds_nothing_serious_in_a_pinned_pair(browser: Browser, pinned: tuple[Handle, Trace], width: int) -> None:
    with pinned_steps(browser, pinned[0], bypass_csp=True, width=width, height=720) as page:
        page.click("text=Show all steps")
        page.wait_for_selector("text=times its own columns of W_O")
        assert violations_in_every_look(page, "trace") == {}
        assert page.evaluate("document.documentElement.scrollWidth") <= width
