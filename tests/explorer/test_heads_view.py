"""All heads at once: what pictures, table and dots show is what the trace holds, for eyes, hands and keyboards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route

from attnscope.explorer.library import trace_scores
from attnscope.explorer.library.library import Library
from attnscope.heads import SCORES, score_heads
from attnscope.matrix.pooling import even_edges
from attnscope.recording import Trace
from tests.explorer.browser import needs_chromium, slow_cases
from tests.explorer.heads_page import (
    cells,
    columns,
    format_score,
    heads_shown,
    picture_at,
    pixels,
    point_of,
    rows_of,
    settled,
    trace_in,
)
from tests.explorer.pages import change, in_trouble, long_trace, shown, smollm2_served, spoken, state, until
from tests.explorer.picture import agrees, entries_of
from tests.explorer.serving import Handle, serving, small_trace
from tests.explorer.synthetic import Values, random_head, trace_of
from tests.explorer.test_access import SIZES, every_size, needs_axe, violations_in_every_look
from tests.explorer.test_hostile import HOSTILE, IMAGE, SCRIPT, assert_in_place, assert_nothing_ran, unsafe_places
from tests.explorer.test_screens import COLLIDING, CUT, TINY

pytestmark = needs_chromium

LAYERS, HEADS = 3, 2
WHOLE = (-32.0, 0.0)  # bits: every code has a colour of its own


@pytest.fixture(scope="module")
def trace() -> Trace:
    return small_trace()


@pytest.fixture(scope="module")
def scored(trace: Trace) -> dict[str, dict[str, float]]:
    return rows_of(score_heads(trace, progress=False))


@pytest.fixture(scope="module")
def book() -> Iterator[Handle]:
    """SmolLM2, 30 layers of 9 heads, and what it has read."""
    with smollm2_served(long_trace()) as handle:
        yield handle


def heads_of(length: int) -> list[list[Any]]:
    return [[random_head(length, seed=10 * layer + head) for head in range(HEADS)] for layer in range(LAYERS)]


def binned(weights: Values, bins: int, by: str) -> Values:
    """The largest or the mean weight of the cells of each bin that the mask allows; NaN where there is none."""
    edges = even_edges(len(weights), min(bins, len(weights)))
    sides = list(pairwise(edges))
    blocks = [[weights[i0:i1, j0:j1] for j0, j1 in sides] for i0, i1 in sides]
    pool = np.nanmax if by == "max" else np.nanmean
    return np.array([[np.nan if np.isnan(block).all() else pool(block) for block in row] for row in blocks])


def wrong(picture: np.ndarray, truth: Values) -> int:
    """How many pixels of a picture do not show their bin."""
    side, bins = len(picture), len(truth)
    place = (np.arange(side) + 0.5) * bins / side
    sure = np.abs(place - np.round(place)) * side / bins > 0.01
    at = place[sure].astype(int)
    entries = entries_of(picture[np.ix_(np.flatnonzero(sure), np.flatnonzero(sure))], "cividis")
    return int((~agrees(entries, truth[np.ix_(at, at)], WHOLE)).sum())


@pytest.mark.parametrize("scale", [*slow_cases(1), 2])
@pytest.mark.parametrize(("length", "by"), [*slow_cases((5, "max"), (64, "max")), (300, "max"), (300, "mean")])
def test_every_pixel_of_a_picture_shows_its_bin(browser: Browser, length: int, by: str, scale: int) -> None:
    heads = heads_of(length)
    query = "r=-32,0" + ("&agg=mean" if by == "mean" else "")
    with (
        serving(trace_of(heads), page=True) as handle,
        heads_shown(browser, handle, query, device_scale_factor=scale) as page,
    ):
        drawn = pixels(page)
        said = page.inner_text(".heads-words")
    for layer in range(LAYERS):
        for head in range(HEADS):
            truth = binned(heads[layer][head].rows(range(length)), 64, by)
            assert wrong(picture_at(drawn, layer, head, 64, scale), truth) == 0, (layer, head)
    assert ("mean" if by == "mean" else "largest") in said
    assert f"from all {length} rows" in said


@pytest.mark.slow
def test_a_small_picture_keeps_the_largest_weights(browser: Browser) -> None:
    """Half the pixels there are bins: no thin line gets lost between them."""
    heads = heads_of(300)
    with serving(trace_of(heads), page=True) as handle, heads_shown(browser, handle, "r=-32,0") as page:
        page.click("text=small")
        drawn = pixels(page)
    for layer in range(LAYERS):
        for head in range(HEADS):
            fine = binned(heads[layer][head].rows(range(300)), 64, "max").reshape(32, 2, 32, 2)
            truth = np.fmax.reduce(fine, (1, 3))
            assert wrong(picture_at(drawn, layer, head, 32), truth) == 0, (layer, head)


def test_pictures_of_some_rows_say_of_how_many(browser: Browser) -> None:
    length = 6000
    with serving(trace_of([[random_head(length)]]), page=True) as handle, heads_shown(browser, handle) as page:
        said = page.inner_text(".heads-words")
    rows = re.search(r"from ([\d,]+) of 6,000 rows", said)
    assert rows, said
    assert 64 <= int(rows[1].replace(",", "")) < length


def test_a_picture_under_the_pointer_is_named_with_its_numbers(
    browser: Browser, small: Handle, scored: dict[str, dict[str, float]]
) -> None:
    with heads_shown(browser, small) as page:
        for layer, head in ((0, 1), (1, 3)):
            page.mouse.move(*point_of(page, layer, head))
            card = until(page, lambda: page.is_visible(".heads-card") and page.inner_text(".heads-card"), "the card")
            name = f"L{layer}H{head}"
            assert card.startswith(name)
            for score, value in scored[name].items():
                found = re.search(rf"{score.replace('_', ' ')}\s+(\S+)", card)
                assert found, (score, card)
                assert float(found[1]) == pytest.approx(value, rel=0.005, abs=1e-6)
        page.mouse.move(5, 5)
        until(page, lambda: not page.is_visible(".heads-card"), "the card to go")


def test_a_click_or_enter_opens_the_map_of_a_head(browser: Browser, small: Handle) -> None:
    with heads_shown(browser, small) as page:
        page.mouse.click(*point_of(page, 1, 2))
        until(page, lambda: state(page)["view"] == "map", "the map")
        assert (state(page)["layer"], state(page)["head"]) == (1, 2)
        page.wait_for_selector(".map[data-state=ready]", state="attached")
        page.go_back()
        until(page, lambda: state(page)["view"] == "heads", "the heads")
        page.focus(".heads-frame canvas")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("End")
        assert (state(page)["layer"], state(page)["head"]) == (1, 3)
        until(page, lambda: spoken(page).startswith("L1H3"), "the name")
        assert page.inner_text(".heads-card").startswith("L1H3")
        page.keyboard.press("Enter")
        until(page, lambda: state(page)["view"] == "map", "the map")
        assert (state(page)["layer"], state(page)["head"]) == (1, 3)


@pytest.mark.slow
def test_the_selected_picture_comes_into_view(browser: Browser, book: Handle) -> None:
    with heads_shown(browser, book, head="L29H8") as page:
        assert page.evaluate("document.querySelector('.heads-frame').scrollTop") > 500
        page.focus(".heads-frame canvas")
        for _ in range(6):
            page.keyboard.press("PageUp")
        page.keyboard.press("Home")
        assert (state(page)["layer"], state(page)["head"]) == (0, 0)
        assert page.evaluate("document.querySelector('.heads-frame').scrollTop") == 0


@pytest.mark.slow
def test_the_key_h_gives_the_pictures_the_keyboard(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        page.focus(".centre .map >> nth=0")
        page.keyboard.press("h")
        settled(page)
        page.keyboard.press("ArrowRight")
        assert (state(page)["view"], state(page)["head"]) == ("heads", 1)
        page.keyboard.press("m")
        until(page, lambda: state(page)["view"] == "map", "the map")


@pytest.mark.slow
def test_layers_are_read_a_few_at_a_time(browser: Browser, book: Handle) -> None:
    running, most, asked = set(), [0], []

    def begin(request: Any) -> None:
        if re.search(r"/(heads|thumbs)(\?|$)", request.url):
            running.add(request)
            asked.append(request.url)
            most[0] = max(most[0], len(running))

    with shown(browser, book.url) as page:
        page.on("request", begin)
        for ended in ("requestfinished", "requestfailed"):
            page.on(ended, lambda request: running.discard(request))
        change(page, view="heads", headsAs="table")
        until(page, lambda: len(asked) > 3, "some layers")
        assert "Scoring layer" in page.inner_text(".heads-words")
        settled(page)
        assert page.locator(".heads-table tbody tr").count() == 270
    assert most[0] <= 4, "two layers for the table, two for the ranking beside it"


def test_the_table_holds_every_score_of_every_head(
    browser: Browser, small: Handle, trace: Trace, scored: dict[str, dict[str, float]]
) -> None:
    labels = score_heads(trace, progress=False).labels or []
    with heads_shown(browser, small, "as=table") as page:
        names, rows = columns(page), cells(page)
        titles = page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('[data-score]')]"
            ".map((one) => [one.dataset.score, one.querySelector('button').title]))"
        )
    assert names[0:3] == ["head", "ablate", "labels"]
    assert [row[0] for row in rows] == list(scored)
    for row, own in zip(rows, labels, strict=True):
        assert re.sub(r"[^\w ]", "", row[2]).split() == list(own)
        expected = [format_score(scored[row[0]].get(name.replace(" ", "_"), np.nan)) for name in names[3:]]
        assert row[3:] == expected, row[0]
    assert {score: text for score, text in titles.items() if score} == {
        score: SCORES[score] for score in titles if score
    }


def test_the_arrow_of_the_first_column_is_in_view(browser: Browser, small: Handle) -> None:
    with heads_shown(browser, small, "as=table") as page:
        arrow = "getComputedStyle(document.querySelector('[aria-sort=ascending] button'), '::before')"
        assert page.evaluate(f"{arrow}.content") == '"↑"'
        room, needed = page.evaluate(f"""() => {{
          const first = document.querySelector("[aria-sort=ascending] button").getBoundingClientRect().left;
          const frame = document.querySelector(".heads-table").getBoundingClientRect().left;
          return [first - frame, -parseFloat({arrow}.marginLeft)];
        }}""")
        assert room >= needed > 0


@pytest.mark.slow
def test_a_column_orders_the_table_and_says_so(
    browser: Browser, small: Handle, scored: dict[str, dict[str, float]]
) -> None:
    by_entropy = sorted(scored, key=lambda name: -scored[name]["entropy"])
    with heads_shown(browser, small, "as=table") as page:
        header = page.locator("th[data-score=entropy]")
        assert header.get_attribute("aria-sort") == "none"
        assert page.locator("th[data-score='']").get_attribute("aria-sort") == "ascending"
        for expected, order in ((by_entropy, "descending"), (by_entropy[::-1], "ascending"), (list(scored), "none")):
            header.locator("button").focus()
            page.keyboard.press("Enter")
            assert [row[0] for row in cells(page)] == expected
            assert header.get_attribute("aria-sort") == order
            assert page.evaluate("document.activeElement.innerText") == "entropy", "the keyboard stays there"


@pytest.mark.slow
def test_only_heads_of_a_label_are_listed_and_a_row_opens_the_map(browser: Browser, book: Handle) -> None:
    table = score_heads(long_trace(), progress=False)
    with heads_shown(browser, book, "as=table&sort=-sink") as page:
        names = [f"L{layer}H{head}" for layer in range(30) for head in range(9)]
        sinks = {name for name, own in zip(names, table.labels or [], strict=True) if "sink" in own}
        page.select_option(".heads-bar select", "sink")
        assert {row[0] for row in cells(page)} == sinks
        assert f"sink ({len(sinks)})" in page.inner_text(".heads-bar select")
        first = cells(page)[0][0]
        page.locator(".heads-table tbody tr >> nth=0").locator("td >> nth=3").click()
        until(page, lambda: state(page)["view"] == "map", "the map")
        assert f"L{state(page)['layer']}H{state(page)['head']}" == first
        assert state(page)["label"] == "sink"


@pytest.mark.slow
def test_a_label_fades_the_pictures_of_other_heads(browser: Browser, book: Handle) -> None:
    table = score_heads(long_trace(), progress=False)
    with heads_shown(browser, book, head="L20H8") as page:
        page.evaluate("document.querySelector('.heads-frame').scrollTop = 0")
        before = pixels(page)
        page.select_option(".heads-bar select", "sink")
        after = pixels(page)
    for layer in range(6):
        for head in range(9):
            sink = "sink" in (table.labels or [])[layer * 9 + head]
            same = np.array_equal(picture_at(before, layer, head, 64), picture_at(after, layer, head, 64))
            assert same == sink, (layer, head)


@pytest.mark.slow
def test_dots_are_named_by_hand_and_by_keyboard(
    browser: Browser, small: Handle, scored: dict[str, dict[str, float]]
) -> None:
    with heads_shown(browser, small, "as=scatter&xy=reach,self") as page:
        page.focus(".heads-plot canvas")
        for _ in range(8):
            page.keyboard.press("ArrowLeft")
        seen = []
        for _ in range(8):
            seen.append(f"L{state(page)['layer']}H{state(page)['head']}")
            until(page, lambda: page.inner_text(".heads-card").startswith(seen[-1]), "the card")
            page.keyboard.press("ArrowRight")
        assert seen == sorted(scored, key=lambda name: scored[name]["reach"])
        page.select_option(".heads-axes select >> nth=1", "effective_keys")
        assert state(page)["axes"] == ["reach", "effective_keys"]
        page.focus(".heads-plot canvas")
        for _ in range(8):
            page.keyboard.press("ArrowUp")
        best = max(scored, key=lambda name: scored[name]["effective_keys"])
        page.wait_for_selector(f".heads-card:has-text('{best}')")
        canvas, card = (page.locator(f".heads-{part}").bounding_box() for part in ("plot canvas", "card"))
        assert canvas
        assert card
        page.mouse.move(canvas["x"] + 3, canvas["y"] + 3)
        page.wait_for_selector(".heads-card", state="hidden")
        # The card stands beside its dot, on the side where there is room.
        for x in (card["x"] - 20, card["x"] + card["width"] + 20):
            page.mouse.move(x, card["y"] + 12)
            if page.is_visible(".heads-card"):
                break
        assert page.inner_text(".heads-card strong") == best


@pytest.mark.slow
def test_the_legend_of_the_dots_has_words(browser: Browser, book: Handle) -> None:
    labels = {label for own in score_heads(long_trace(), progress=False).labels or [] for label in own}
    with heads_shown(browser, book, "as=scatter") as page:
        legend = page.inner_text(".heads-legend")
    assert all(label in legend for label in labels)


def test_a_link_brings_the_view_back(browser: Browser, small: Handle) -> None:
    query = "as=scatter&sort=-sink&xy=reach,self&label=mixed"
    with heads_shown(browser, small, query, head="L1H2") as page:
        now = state(page)
        until(page, lambda: query in page.evaluate("location.hash"), "the address")
    assert (now["layer"], now["head"], now["headsAs"], now["order"]) == (1, 2, "scatter", "-sink")
    assert (now["axes"], now["label"]) == (["reach", "self"], "mixed")


def test_what_cannot_be_scored_is_said(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_scores, "MAX_WHOLE_CELLS", 2000**2)
    library = Library()
    library.add(trace_of([[random_head(2100, causal=False)]]), name="both ways")
    with serving(library, page=True) as handle:
        url = f"{handle.url}#1/{trace_in(handle)}/L0H0/heads?as=table"
        with in_trouble(browser, url) as page:
            until(page, lambda: "is bidirectional" in page.inner_text(".heads-words"), "the words")
            page.click("text=Pictures")
            until(page, lambda: "64 × 64 bins" in page.inner_text(".heads-words"), "the pictures")


def hostile_scores(route: Route) -> None:
    """Labels, scores and meanings that no server of ours would send."""
    heads = [
        {"labels": [text, SCRIPT], "scores": {text: 0.5, f"{text}_b": 1.0, "sink": place / 100}}
        for place, text in enumerate(HOSTILE[6:10])
    ]
    meanings = {text: f"{IMAGE}\u202e{text}" for text in HOSTILE}
    response = {
        "scored_queries": 9,
        "num_queries": 9,
        "heads": heads,
        "meanings": meanings,
        "measures": meanings,
        "pending": False,
    }
    route.fulfill(content_type="application/json", body=json.dumps(response))


@pytest.mark.parametrize("size", [(1600, 1000), (360, 640)], ids=str)
def test_hostile_names_and_labels_are_shown_as_text(browser: Browser, small: Handle, size: tuple[int, int]) -> None:
    with shown(browser, small.url, width=size[0], height=size[1]) as page:
        page.route(re.compile(r"/\d+/heads$"), hostile_scores)
        for headsAs in ("table", "scatter", "grid"):
            change(page, view="heads", headsAs=headsAs)
            settled(page)
            page.focus(".heads-area [tabindex='0'] >> nth=0")
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(100)
            if headsAs != "table":  # which is wider than a phone, and scrolls
                assert_in_place(page, headsAs)
            assert unsafe_places(page) == [], headsAs
            assert_nothing_ran(page)
        assert page.evaluate("document.querySelector('.heads-bar select').textContent").find(SCRIPT[:20]) >= 0


def scenes(page: Page) -> Iterator[str]:
    """Take a page of a small model in a session through all that this view can show."""
    change(page, view="heads")
    settled(page)
    yield "pictures"
    page.focus(".heads-frame canvas")
    page.keyboard.press("ArrowRight")
    yield "a picture named"
    change(page, headsAs="table", order="-entropy", ablated=[[0, 1], [2, 3]])
    settled(page)
    until(page, lambda: page.locator(".pairs").count() == 3, "the effect")
    yield "table, two heads ablated"
    change(page, headsAs="scatter")
    settled(page)
    yield "dots"


@pytest.mark.slow
@needs_axe
@every_size
def test_axe_finds_nothing_serious_in_the_heads_view(browser: Browser, model_server: Handle, size: str) -> None:
    found: dict[str, list[str]] = {}
    with shown(browser, model_server.url, bypass_csp=True, **SIZES[size]) as page:
        for scene in scenes(page):
            found |= violations_in_every_look(page, scene)
    assert found == {}


@pytest.mark.slow
@every_size
def test_nothing_overflows_is_cut_or_tiny_in_the_heads_view(browser: Browser, model_server: Handle, size: str) -> None:
    with shown(browser, model_server.url, **SIZES[size]) as page:
        for scene in scenes(page):
            assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0, scene
            for what in (CUT, TINY, *(() if scene == "a picture named" else (COLLIDING,))):
                assert page.evaluate(what) == [], scene
