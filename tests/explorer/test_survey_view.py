"""The page of a survey: it shows what the survey holds, and its passages lead to maps of the very same weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route

from attnscope.explorer.analysis.histogram_edges import histogram_edges
from attnscope.heads import score_heads
from attnscope.survey import Survey, open_survey
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.heads_page import cells, columns, format_score
from tests.explorer.pages import drawn, in_trouble, ready, shown, spoken, state, until
from tests.explorer.serving import Handle, serving, small_trace
from tests.explorer.survey_folder import HEADS, LAYERS, make_survey, save_model, survey_served
from tests.explorer.test_access import SIZES, every_size, needs_axe, violations_in_every_look
from tests.explorer.test_hostile import (
    HOSTILE,
    IMAGE,
    SCRIPT,
    UNSAFE,
    assert_in_place,
    assert_nothing_ran,
    unsafe_places,
)
from tests.explorer.test_screens import COLLIDING, CUT, TINY

pytestmark = needs_chromium

NAMES = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]
ROUNDED = 1e-6  # shares are told to six decimals
SAME = 1e-4  # a score of a packed row and of a passage read alone
API = "/api/1/survey"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_survey(tmp_path_factory.mktemp("survey"))


@pytest.fixture(scope="module")
def survey(folder: Path) -> Survey:
    return open_survey(folder)


@pytest.fixture(scope="module")
def surveyed(folder: Path) -> Iterator[Handle]:
    with survey_served(folder) as handle:
        yield handle


def settled(page: Page) -> None:
    """Wait until the chosen head has its passages, and the histograms have come."""
    until(
        page, lambda: page.locator(".passage").count() and not page.is_visible(".survey-head [role=status]"), "passages"
    )
    page.wait_for_load_state("networkidle")


def survey_shown(browser: Browser, handle: Handle, place: str = "L0H0", query: str = "", /, **options: Any) -> Any:
    """A page of the survey at a head."""
    return shown(browser, f"{handle.url}#1/-/{place}/heads?{query}", **options)


def test_every_number_that_is_told_is_the_surveys(surveyed: Handle, survey: Survey) -> None:
    about = surveyed.get(f"{API}/about").json
    means, spread = survey.heads, survey.table("std")
    assert [statistic["name"] for statistic in about["statistics"]] == list(survey.statistics)
    assert len(about["heads"]) == LAYERS * HEADS
    for row, head in enumerate(about["heads"]):
        assert head["means"] == {name: float(column[row]) for name, column in means.columns.items()}
        assert head["spread"] == {name: float(column[row]) for name, column in spread.columns.items()}
        assert tuple(head["labels"]) == (means.labels or ())[row]
    layers = list(dict.fromkeys(means.layers))
    for statistic in ("previous", "reach"):
        found = surveyed.get(f"{API}/histograms?statistic={statistic}").json
        assert found["edges"] == histogram_edges(float(survey.table("max").columns[statistic].max()))
        for layer, head in ((0, 0), (2, 3)):
            truth = survey.histogram(layers[layer], head, statistic).rebin(np.array(found["edges"]))
            assert found["shares"][layer][head] == pytest.approx(truth.tolist(), abs=ROUNDED)
            one = surveyed.get(f"{API}/{layer}/{head}?statistic={statistic}").json
            assert one["shares"] == found["shares"][layer][head]
            assert one["numbers"]["p95"] == survey.distribution(layers[layer], head, statistic).quantiles["p95"]


def test_a_passage_is_told_in_three_parts_with_the_strongest_token_in_the_middle(
    surveyed: Handle, survey: Survey
) -> None:
    layer = survey.heads.layers[HEADS]
    told_ones = surveyed.get(f"{API}/1/2?statistic=sink").json["examples"]
    known = survey.examples(layer, 2, "sink")
    assert [one["passage"] for one in told_ones] == [one.passage for one in known]
    for one, truth in zip(told_ones, known, strict=True):
        assert one["before"] + one["marked"] + one["after"] == truth.text
        assert one["score"] == truth.score
        if truth.position is None:
            assert one["marked"] == ""
        else:  # a token is a character here
            assert (one["before"], one["marked"]) == (truth.text[: truth.position], truth.text[truth.position])


def test_addresses_of_a_survey_are_guarded_and_refuse_what_is_not_there(surveyed: Handle) -> None:
    for path in ("/survey", "/survey.js", "/survey.css", f"{API}/about", f"{API}/0/0?statistic=sink"):
        assert surveyed.get(path, authorization="").status == (401 if path.startswith(API) else 200), path
        assert surveyed.get(path, origin="http://elsewhere.example").status == 403, path
        assert surveyed.get(path).status == 200, path
    wish = {"passage": 0, "layer": 0, "head": 0}
    assert surveyed.post(f"{API}/read", wish, authorization="Bearer ").status == 401
    assert surveyed.get(f"{API}/histograms?statistic=beauty").status == 400
    assert surveyed.get(f"{API}/9/0?statistic=sink").status == 404
    assert surveyed.get(f"{API}/0/{HEADS}?statistic=sink").status == 404
    passages = [{"passage": number} for number in (10**9, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30)]
    for wrong in (*passages, {"layer": LAYERS}, {"layer": -1}, {"head": HEADS}, {"head": -1}):
        assert surveyed.post(f"{API}/read", {**wish, **wrong}).status in (400, 404), wrong
    assert surveyed.post(f"{API}/read", {**wish, "passage": "0"}).status == 400


def test_without_a_survey_there_is_nothing_at_its_addresses() -> None:
    with serving(small_trace()) as handle:
        assert handle.get(f"{API}/about").status == 404
        assert handle.post(f"{API}/read", {"passage": 0, "layer": 0, "head": 0}).status in (404, 409)
        assert handle.get("/api/1/session").json["survey"] is False


def test_the_table_holds_every_mean_with_its_spread_in_any_order(
    browser: Browser, surveyed: Handle, survey: Survey
) -> None:
    means, spread = survey.heads, survey.table("std")
    with survey_shown(browser, surveyed, "L0H0", "as=table") as page:
        assert columns(page)[2:] == [name.replace("_", " ") for name in survey.statistics]
        rows = cells(page)
        assert [row[0] for row in rows] == NAMES
        for at, row in enumerate(rows):
            numbers = [(float(means[name][at]), float(spread[name][at])) for name in survey.statistics]
            assert row[2:] == [f"{format_score(mean)} ±{format_score(other)}" for mean, other in numbers]
        page.click("th[data-score=entropy] button")
        by_entropy = sorted(range(len(NAMES)), key=lambda at: -float(means["entropy"][at]))
        assert [row[0] for row in cells(page)] == [NAMES[at] for at in by_entropy]
        assert page.locator("th[data-score=entropy]").get_attribute("aria-sort") == "descending"
        page.locator(".heads-table tbody tr >> nth=3").locator("td[data-statistic=self]").click()
        name = NAMES[by_entropy[3]]
        until(page, lambda: page.inner_text(".survey-head h2") == f"{name}: self", "the head")
        until(page, lambda: "stat=self" in page.evaluate("location.hash"), "the address")
        assert f"/{name}/heads" in page.evaluate("location.hash")


def test_passages_stand_from_the_most_to_the_least(browser: Browser, surveyed: Handle, survey: Survey) -> None:
    known = survey.examples(survey.heads.layers[0], 1, "local")
    expected = [one for one in known if one.kind == "top"] + [one for one in known if one.kind == "decile"][::-1]
    with survey_shown(browser, surveyed, "L0H1", "stat=local") as page:
        settled(page)
        ranks = page.locator(".passage-rank").all_inner_texts()
        tops = [f"top {at + 1}" for at in range(sum(one.kind == "top" for one in known))]
        assert ranks[: len(tops)] == tops
        assert [int(re.findall(r"\d+", rank)[0]) for rank in ranks[len(tops) :]] == list(range(10, 0, -1))
        scores = [float(text) for text in page.locator(".passage-score").all_inner_texts()]
        assert scores == pytest.approx([one.score for one in expected], rel=0.005)
        first = page.locator(".passage >> nth=0")
        where = expected[0].position
        assert where is not None
        mark = expected[0].text[where]
        assert first.locator("mark").inner_text() == {" ": "·", "\n": "⏎"}.get(mark, mark)
        facts = page.inner_text(".survey-head .facts")
        assert f"queries\n{survey.distribution(survey.heads.layers[0], 1, 'local').count:,}" in facts


def test_a_passage_opens_the_map_of_what_the_survey_has_counted(
    browser: Browser, surveyed: Handle, survey: Survey
) -> None:
    best = survey.examples(survey.heads.layers[HEADS], 2, "previous")[0]
    with survey_shown(browser, surveyed, "L1H2", "stat=previous&as=table&sort=-previous") as page:
        settled(page)
        page.locator(".passage button:has-text('Open map') >> nth=0").click()
        page.wait_for_url(re.compile(r"/#1/[0-9a-f]{32}/L1H2/map"))
        ready(page)
        drawn(page)
        now = state(page)
        assert (now["layer"], now["head"], now["pinQuery"]) == (1, 2, best.position)
        entry = surveyed.server.library.entry(now["trace"])
        assert entry is not None
        assert "".join(entry.trace.tokens() or []) == best.text
        score = score_heads(entry.trace, progress=False)["previous"][HEADS + 2]
        assert float(score) == pytest.approx(best.score, abs=SAME)
        page.click("a:has-text('Survey')")
        settled(page)
        assert page.inner_text(".survey-head h2") == "L1H2: previous"
        assert page.locator("th[data-score=previous]").get_attribute("aria-sort") == "descending"


def test_what_keeps_the_model_away_is_said_beside_the_passage(browser: Browser, folder: Path, tmp_path: Path) -> None:
    with survey_served(folder, tmp_path / "nowhere") as handle, in_trouble(browser, handle.url) as page:
        ready(page)
        settled(page)
        before = page.locator(".passage-text").all_inner_texts()
        page.locator(".passage button:has-text('Open map') >> nth=1").click()
        alert = page.locator(".passage >> nth=1").locator("[role=alert]")
        until(page, lambda: alert.is_visible(), "the reason")
        assert "cannot load nowhere" in alert.inner_text()
        assert page.locator(".passage-text").all_inner_texts() == before
        assert "nowhere" in handle.get(f"{API}/about").json["reader"]["problem"]


def test_weights_that_have_changed_since_are_refused_unless_they_are_named(tmp_path: Path) -> None:
    folder = make_survey(tmp_path)
    other = save_model(tmp_path / "other", seed=1)
    for file in other.iterdir():
        (tmp_path / "small-model" / file.name).write_bytes(file.read_bytes())
    passage = open_survey(folder).examples("blocks.0.attention", 0, "self")[0].passage
    wish = {"passage": passage, "layer": 0, "head": 0}
    with survey_served(folder) as handle:
        answer = handle.post(f"{API}/read", wish)
        assert answer.status == 400
        assert "have changed since the survey" in answer.json["error"]
    with survey_served(folder, other) as handle:
        assert handle.post(f"{API}/read", wish).status == 200


@pytest.mark.slow
def test_all_of_it_can_be_done_by_keyboard(browser: Browser, surveyed: Handle) -> None:
    with survey_shown(browser, surveyed) as page:
        settled(page)
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.tagName") == "CANVAS":
                break
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        until(page, lambda: page.inner_text(".survey-head h2") == "L1H1: previous", "the head")
        until(page, lambda: spoken(page).startswith("L1H1"), "its name")
        settled(page)
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.innerText") == "L1H1: previous"
        for _ in range(3):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.innerText") == "Open map":
                break
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/#1/[0-9a-f]{32}/L1H1/map"))
        ready(page)


def test_a_hostile_link_shows_something_that_exists(browser: Browser, surveyed: Handle) -> None:
    for query in (f"as={SCRIPT}&stat={IMAGE}&sort=-beauty&xy=beauty,truth&label=none", "stat=__proto__&sort=__proto__"):
        with survey_shown(browser, surveyed, "L9999999H9999999", query) as page:
            settled(page)
            assert page.inner_text(".survey-head h2") == f"{NAMES[-1]}: previous"
            assert_nothing_ran(page)


def hostile_about(route: Route) -> None:
    """Names that no survey of ours would have, around true numbers."""
    about = route.fetch().json()
    about.update(name=f"{SCRIPT}\u202e{'N' * 5000}", model=f"{IMAGE}{'M' * 5000}", meanings={IMAGE: SCRIPT})
    for at, head in enumerate(about["heads"]):
        head["labels"] = [HOSTILE[at], IMAGE]
    for layer in about["layers"]:
        layer["name"] = f"{SCRIPT}\u202e{'L' * 5000}"
    about["reader"]["name"] = IMAGE + SCRIPT
    route.fulfill(content_type="application/json", body=json.dumps(about))


def hostile_head(route: Route) -> None:
    """Passages of hostile text and files, one for each."""
    report = route.fetch().json()
    first = report["examples"][0]
    report["examples"] = [
        {**first, "file": f"{text[:5000]}/{IMAGE}", "before": text[-4000:], "marked": text[:5000], "after": text[:4000]}
        for text in HOSTILE
    ]
    route.fulfill(content_type="application/json", body=json.dumps(report))


@pytest.mark.parametrize("size", [(1600, 1000), (360, 640)], ids=str)
def test_hostile_passages_and_names_are_shown_as_text(
    browser: Browser, surveyed: Handle, size: tuple[int, int]
) -> None:
    with opened(browser, "about:blank", ready=False, width=size[0], height=size[1]) as page:
        page.route("**/survey/about", hostile_about)
        page.route(re.compile(r"/survey/\d+/\d+\?"), hostile_head)
        for form in ("grid", "table", "scatter"):
            page.goto("about:blank")
            page.goto(f"{surveyed.url}#1/-/L0H0/heads?as={form}")
            ready(page)
            settled(page)
            assert page.locator(".passage").count() == len(HOSTILE)
            for whole in page.locator("button:has-text('Whole text'):visible").all():
                whole.click()
            if form != "table":
                page.focus(".heads-area canvas")
                page.keyboard.press("ArrowRight")
            assert_in_place(page, form)
            assert unsafe_places(page) == [], form
            assert not set(UNSAFE) & set(page.inner_text(".survey-head").replace("\n", ""))
            assert_nothing_ran(page)


def scenes(page: Page) -> Iterator[str]:
    """Take a page through all that it can show."""
    settled(page)
    yield "histograms"
    page.click("text=Table")
    yield "table"
    page.click("text=Dots")
    yield "dots"
    page.select_option("select >> nth=0", "induction")
    settled(page)
    yield "another statistic"


@pytest.mark.slow
@needs_axe
@every_size
def test_axe_finds_nothing_serious(browser: Browser, surveyed: Handle, size: str) -> None:
    found: dict[str, list[str]] = {}
    with survey_shown(browser, surveyed, bypass_csp=True, **SIZES[size]) as page:
        for scene in scenes(page):
            found |= violations_in_every_look(page, scene)
    assert found == {}


@pytest.mark.slow
@every_size
def test_nothing_overflows_is_cut_or_tiny(browser: Browser, surveyed: Handle, size: str) -> None:
    with survey_shown(browser, surveyed, **SIZES[size]) as page:
        for scene in scenes(page):
            assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0, scene
            for what in (CUT, TINY, COLLIDING):
                assert page.evaluate(what) == [], scene
