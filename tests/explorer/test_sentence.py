"""Typed sentences: attention of SmolLM2, without its mask, next to its random-weight baseline, and generating."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope.recording import Trace, read
from attnscope.recording.layers.recorded import Layer
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.pages import (
    MAP,
    SENTENCE,
    change,
    drawn,
    focus_map,
    long_trace,
    ready,
    shown,
    smollm2_served,
    state,
    until,
    visible,
)
from tests.explorer.serving import Handle
from tests.models.smollm2 import own_model

pytestmark = needs_chromium
LAYER, HEAD = 12, 3
STATUS = ".generation-fields [aria-live]"
# Notes every text that is drawn on a canvas.
RECORD_LABELS = """window.labels = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.labels.push(text);
  fill.call(this, text, ...rest);
};"""


@pytest.fixture(scope="module")
def served() -> Iterator[Handle]:
    with smollm2_served() as handle:
        yield handle


@pytest.fixture(scope="module")
def truth() -> Trace:
    model, tokenizer = own_model()
    return read(model, SENTENCE, tokenizer, progress=False)


@pytest.fixture(scope="module")
def tab(browser: Browser, served: Handle) -> Iterator[Page]:
    with opened(browser, served.url, ready=False) as page:
        until(page, lambda: page.is_visible("#sentence-text"), "the text box")
        typed(page, "Warm up.")  # an address that names no trace shows the first: one that no test types
        yield page


@pytest.fixture
def page(tab: Page, served: Handle) -> Page:
    """The page as it is opened anew, in the same tab for all tests."""
    tab.goto(f"{served.base}/#1/-/L{LAYER}H{HEAD}/sentence")
    tab.reload()
    until(tab, lambda: tab.is_visible("#sentence-text"), "the text box")
    return tab


def typed(page: Page, text: str = SENTENCE) -> None:
    """Type and wait for the matrix."""
    before = state(page)["trace"]
    page.fill("#sentence-text", text)
    until(page, lambda: state(page)["trace"] != before, "the run")
    ready(page)
    drawn(page)


def values(page: Page, count: int) -> list[list[float | None]]:
    """What the map says of each of its cells once all are known exactly."""
    ask = f"""(count) => {{
      const places = [...Array(count).keys()];
      const readings = places.map((query) => places.map((key) => {MAP}.valueAt({{query, key}})));
      return readings.flat().every((one) => one?.exact) ? readings.map((row) => row.map(({{value}}) => value)) : null;
    }}"""
    return until(page, lambda: page.evaluate(ask, count), "exact values")


def as_tensor(found: list[list[float | None]]) -> torch.Tensor:
    return torch.tensor([[float("nan") if value is None else value for value in row] for row in found])


def test_before_anything_is_typed_the_page_says_what_to_do_and_how_much_it_takes(browser: Browser) -> None:
    with smollm2_served() as handle, opened(browser, handle.url, ready=False) as page:
        until(page, lambda: page.is_visible("#sentence-text"), "the text box")
        said = page.inner_text("main")
        assert "What should SmolLM2-135M read?" in said
        assert "At most 512 tokens" in said
        assert "example" in said
        assert page.locator(".presets button").count() >= 5
        assert not page.locator(".sentence-maps .map").is_visible()


@pytest.mark.slow
def test_a_typed_sentence_is_a_matrix_within_moments(page: Page) -> None:
    page.fill("#sentence-text", "")
    start = time.monotonic()
    typed(page)
    # Four tenths of a second are the pause after the last letter; a machine that does other work is forgiven much.
    assert time.monotonic() - start < 5


@pytest.mark.timed
def test_a_typed_sentence_is_a_matrix_within_about_a_second(page: Page) -> None:
    times = []
    for number in range(5):
        start = time.monotonic()
        typed(page, f"{SENTENCE} {number}")
        times.append(time.monotonic() - start)
    assert sorted(times)[2] < 1.4, "of which 0.4 s are the pause after the last letter"


def test_the_matrix_is_what_the_model_computed(page: Page, truth: Trace) -> None:
    typed(page)
    weights = truth[LAYER].batch(0).head(HEAD)[:]
    assert visible(page) == {"query": [0, 12], "key": [0, 12]}
    found = as_tensor(values(page, 12))
    torch.testing.assert_close(found.nan_to_num(0), weights, atol=1e-5, rtol=0.05)
    assert torch.equal(found.isnan(), torch.ones(12, 12).triu(1).bool()), "what the mask forbids is not a zero"


@pytest.mark.slow
def test_rows_and_columns_carry_the_tokens(page: Page, truth: Trace) -> None:
    page.add_init_script(RECORD_LABELS)
    page.reload()
    until(page, lambda: page.is_visible("#sentence-text"), "the text box")
    typed(page)
    page.evaluate("window.labels.length = 0")
    change(page, scale="linear")
    drawn(page)
    labels = [label.strip("\u2068\u2069") for label in page.evaluate("window.labels")]
    for text in truth.tokens() or []:
        assert labels.count(text.replace(" ", "·")) >= 2, f"{text!r} is a row and a column"


# Of each example: how far it is out of view, and whether its text is cut without dots.
CROPPED = """() => [...document.querySelectorAll(".presets button")].map((one) => {
  const row = one.closest(".presets").getBoundingClientRect(), style = getComputedStyle(one);
  const hidden = one.scrollWidth > one.clientWidth && style.textOverflow !== "ellipsis";
  return [Math.max(0, Math.round(one.getBoundingClientRect().right - row.right)), hidden];
})"""


def test_all_examples_are_in_view_beside_a_text(page: Page) -> None:
    typed(page)
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate(CROPPED) == [[0, False]] * page.locator(".presets button").count()


def test_an_example_opens_the_head_that_shows_it_beside_the_same_head_of_the_baseline(
    page: Page, served: Handle
) -> None:
    presets = served.get("/api/1/session").json["presets"]
    buttons = page.locator(".presets button")
    assert buttons.count() == len(presets) >= 5
    page.add_init_script(RECORD_LABELS)
    page.reload()
    until(page, lambda: page.is_visible("#sentence-text"), "the text box")
    before = state(page)["trace"]
    buttons.nth(4).click()
    until(page, lambda: state(page)["trace"] != before, "the run")
    assert page.input_value("#sentence-text") == presets[4]["text"]
    assert len(page.inner_text(".note")) > 20
    assert (state(page)["layer"], state(page)["head"]) == (presets[4]["layer"], presets[4]["head"])
    page.set_viewport_size({"width": 1440, "height": 900})
    page.check(".sentence input[type=checkbox]")
    until(page, lambda: page.locator(".sentence-maps .map").count() == 2, "the baseline")
    page.wait_for_selector(".sentence-maps figure:nth-of-type(2) .map[data-state=ready]", state="attached")
    drawn(page)
    page.evaluate("window.labels.length = 0")
    change(page, channel="max")
    until(page, lambda: page.evaluate("window.labels.length") > 40, "both maps")
    labels = [label.strip("\u2068\u2069") for label in page.evaluate("window.labels")]
    for word in ("·cabinet", "·wooden"):
        assert labels.count(word) >= 4, "a row and a column of both maps, and not cut"
    change(page, layer=3, head=1)
    buttons.nth(4).click()  # the same text again leads back to its head
    until(
        page,
        lambda: (state(page)["layer"], state(page)["head"]) == (presets[4]["layer"], presets[4]["head"]),
        "the head",
    )


@pytest.mark.slow
def test_clicking_a_cell_a_row_and_a_column_pins_them(page: Page) -> None:
    typed(page)
    box = page.locator(".sentence-maps .map").bounding_box()
    heat = page.locator(".sentence-maps .map-heat").bounding_box()
    assert box
    assert heat
    side = page.evaluate("document.querySelector('.sentence-maps .map-heat').clientHeight") / 12
    x, y = heat["x"] + 2.5 * side, heat["y"] + 7.5 * side
    page.mouse.click(x, y)
    assert (state(page)["pinQuery"], state(page)["pinKey"]) == (7, 2)
    until(page, lambda: page.is_visible(".weight-large"), "the weight")
    page.mouse.click(x, y)
    assert (state(page)["pinQuery"], state(page)["pinKey"]) == (None, None)
    page.mouse.click(heat["x"] - 60, y)
    assert (state(page)["pinQuery"], state(page)["pinKey"]) == (7, None)
    page.mouse.click(x, heat["y"] - 40)
    assert (state(page)["pinQuery"], state(page)["pinKey"]) == (7, 2)


@pytest.mark.parametrize("text", ["word " * 600, "x" * 20_001], ids=["tokens", "characters"])
def test_too_long_a_text_is_refused_in_words(browser: Browser, served: Handle, text: str) -> None:
    # A refusal is an error on the console of the browser, so this is not for the tab that has none.
    with browser.new_context() as inside:
        page = inside.new_page()
        page.goto(f"{served.url}#1/-/L0H0/sentence")
        until(page, lambda: page.is_visible("#sentence-text"), "the text box")
        before = state(page)["trace"]
        page.fill("#sentence-text", text)
        until(page, lambda: page.is_visible(".problem"), "the refusal")
        assert "512" in page.inner_text(".problem")
        assert state(page)["trace"] == before


def test_without_the_mask_the_cells_are_the_softmax_of_all_scores(page: Page, truth: Trace) -> None:
    typed(page)
    focus_map(page)
    page.keyboard.press("u")
    until(page, lambda: page.is_visible(".badge"), "the badge")
    assert page.inner_text(".badge") == "not what the model computed"
    page.wait_for_timeout(100)
    drawn(page)
    layer = truth.layer(LAYER)
    assert isinstance(layer, Layer)
    call = layer.merge_calls()
    query, keys = call.query[0, HEAD].double(), call.key[0].double()
    key = keys[HEAD * len(keys) // call.query.shape[1]]
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    weights = (query @ key.mT * scale).softmax(-1)
    found = until(page, lambda: full(page), "weights above the diagonal")
    torch.testing.assert_close(as_tensor(found), weights.float(), atol=1e-5, rtol=0.05)
    page.keyboard.press("u")
    until(page, lambda: not page.is_visible(".badge"), "no badge")


def full(page: Page) -> list[list[float | None]] | None:
    """All cells, once none of them is masked."""
    found = values(page, 12)
    return found if all(value is not None for row in found for value in row) else None


def test_the_random_weight_baseline_shares_pins_and_head(page: Page) -> None:
    typed(page)
    page.check(".sentence input[type=checkbox]")
    until(page, lambda: page.locator(".sentence-maps .map").count() == 2, "the baseline")
    page.wait_for_selector(".sentence-maps figure:nth-of-type(2) .map[data-state=ready]", state="attached")
    captions = page.locator(".sentence-maps figcaption").all_inner_texts()
    assert captions[0] == "trained"
    assert captions[1].startswith("random-weight baseline")
    one, other = (page.locator(".sentence-maps .map").nth(number).bounding_box() for number in (0, 1))
    assert one
    assert other
    assert other["x"] >= one["x"] + one["width"] - 1
    assert other["y"] == one["y"]
    heat = page.locator(".sentence-maps .map-heat").nth(1).bounding_box()
    assert heat
    page.mouse.click(heat["x"] + 5, heat["y"] + 60)
    assert state(page)["pinKey"] == 0
    pictures = page.evaluate("[...document.querySelectorAll('.sentence-maps .map-heat')].map((one) => one.toDataURL())")
    assert pictures[0] != pictures[1]


def begin_writing(page: Page, count: int) -> None:
    typed(page)
    if not page.locator(".generation-fields").is_visible():
        page.click("summary:has-text('Generate')")
    page.fill(".generation-fields input >> nth=0", str(count))
    page.evaluate("""() => {
      window.moments = [];
      const look = () => window.moments.push([performance.now(), document.querySelectorAll(".strip .new").length]);
      new MutationObserver(look).observe(document.querySelector(".generation"), {childList: true, subtree: true});
    }""")
    page.click(".generation-fields button.primary")


def new_tokens(page: Page) -> int:
    return page.locator(".strip .new").count()


def test_new_tokens_appear_one_by_one_and_the_whole_becomes_the_trace(page: Page) -> None:
    begin_writing(page, 12)
    until(page, lambda: "new token" in page.inner_text(STATUS), "the end")
    moments: list[tuple[float, int]] = page.evaluate("window.moments")
    first = {count: moment for moment, count in reversed(moments)}
    steps = [first[count] for count in sorted(first) if count > 0]
    assert len(steps) >= 10, "almost each was seen before the next"
    assert steps[-1] - steps[0] > 0.05 * len(steps), "over time, not all at the end"
    until(page, lambda: "24 of at most" in page.inner_text("#sentence-size"), "the whole text")
    drawn(page)
    assert page.input_value("#sentence-text").startswith(SENTENCE)
    page.click("text=Open as map")
    drawn(page)
    assert state(page)["view"] == "map"
    assert visible(page)["query"] == [0, 24]


@pytest.mark.slow
def test_the_same_seed_writes_the_same_text(page: Page) -> None:
    texts = []
    for _ in range(2):
        begin_writing(page, 4)
        until(page, lambda: "new token" in page.inner_text(STATUS), "the end")
        texts.append(page.input_value("#sentence-text"))
        page.reload()
        until(page, lambda: page.is_visible("#sentence-text"), "the text box")
        page.fill("#sentence-text", "Something else.")
        page.wait_for_timeout(500)
    assert texts[0] == texts[1]
    assert texts[0] != SENTENCE


def test_stop_stops_the_model_too(page: Page, served: Handle) -> None:
    begin_writing(page, 256)
    until(page, lambda: new_tokens(page) >= 2, "two tokens")
    page.click(".generation-fields >> text=Stop")
    until(page, lambda: page.inner_text(STATUS).startswith("stopped after"), "words")
    count = new_tokens(page)
    assert count < 250
    page.wait_for_timeout(600)
    assert new_tokens(page) == count
    assert page.is_visible(".generation-fields button.primary")
    # The model is free again at once: it would take seconds to write the rest.
    start = time.monotonic()
    answer = served.post("/api/1/run", {"text": "Free again."})
    assert answer.status == 200
    assert time.monotonic() - start < 3


@pytest.mark.slow
def test_a_trace_that_could_have_been_typed_is_offered_in_the_text_box(browser: Browser) -> None:
    with smollm2_served(long_trace()) as handle, shown(browser, handle.url) as page:
        focus_map(page)
        page.keyboard.press("i")
        assert state(page)["view"] == "sentence"
        until(page, lambda: page.input_value("#sentence-text").startswith("= A play ="), "its text in the box")
