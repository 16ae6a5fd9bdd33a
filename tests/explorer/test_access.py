"""The explorer for people who do not see the map, do not see its colours, or ask for less motion."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from torch import Tensor

from attnscope.recording import Trace
from tests.explorer.browser import needs_chromium, slow_cases
from tests.explorer.pages import (
    change,
    drawn,
    focus_map,
    long_trace,
    looks,
    shown,
    smollm2_served,
    spoken,
    state,
    until,
    visible,
)
from tests.explorer.scenes import scenes, server_stopped, trace_elsewhere
from tests.explorer.serving import TEXT, Handle, small_trace

pytestmark = needs_chromium
WEB = Path(__file__).resolve().parents[2] / "web"
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
SIZES = {"wide": {"width": 1600, "height": 1000}, "phone": {"width": 360, "height": 640}}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"colours": "light", "forced_colors": "none"},
    "dark": {"colours": "dark", "forced_colors": "none"},
    "forced": {"colours": "light", "forced_colors": "active"},
}
COLOUR_RULES = ("color-contrast", "link-in-text-block")
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not here: npm ci --prefix web")
every_size = pytest.mark.parametrize("size", SIZES)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return small_trace()


def violations(page: Page, *rules: str) -> list[str]:
    """Serious and critical findings, each with the first element that has it; of some rules, or of all."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text())
    options = {"resultTypes": ["violations"], **({"runOnly": {"type": "rule", "values": rules}} if rules else {})}
    found = page.evaluate("(options) => axe.run(document, options)", options)["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def violations_in_every_look(page: Page, scene: str) -> dict[str, list[str]]:
    """The same view in light, dark and forced colours; what is found, by where.

    Rules that are not about colours have the same elements to look at in all three, and run once.
    """
    found = {}
    for look, wanted in LOOKS.items():
        looks(page, **wanted)
        found[f"{scene}, {look}"] = violations(page, *(() if look == "light" else COLOUR_RULES))
    looks(page, **LOOKS["light"])
    return {where: those for where, those in found.items() if those}


@needs_axe
@pytest.mark.parametrize("size", ["wide", *slow_cases("phone")])
def test_axe_finds_nothing_serious_in_any_view(browser: Browser, model_server: Handle, size: str) -> None:
    found: dict[str, list[str]] = {}
    with shown(browser, model_server.url, bypass_csp=True, **SIZES[size]) as page:
        for scene in scenes(page):
            found |= violations_in_every_look(page, scene)
    assert found == {}


@pytest.mark.slow
@needs_axe
@every_size
def test_axe_finds_nothing_serious_when_something_is_wrong(browser: Browser, model_server: Handle, size: str) -> None:
    with trace_elsewhere(browser, model_server, bypass_csp=True, **SIZES[size]) as page:
        assert violations_in_every_look(page, "a trace elsewhere") == {}
    with server_stopped(browser, bypass_csp=True, **SIZES[size]) as page:
        assert violations_in_every_look(page, "a server that stopped") == {}


def test_a_pin_is_told_in_a_sentence_with_the_true_numbers(browser: Browser, small: Handle, trace: Trace) -> None:
    row = trace[1].batch(0).head(3)[50].double()
    order = row.argsort(descending=True).tolist()
    with shown(browser, small.url) as page:
        change(page, layer=1, head=3)
        for rank in (0, 1, 2, 20):
            key = order[rank]
            change(page, pinQuery=50, pinKey=key)
            pattern = rf"query 50 '(.+)', key {key} '(.+)', weight (\S+), (\d+)(?:st|nd|rd|th) of 51 visible keys"
            said = until(page, lambda pattern=pattern: re.fullmatch(pattern, spoken(page)), pattern)
            texts = [TEXT[place].replace(" ", "·").replace("\n", "⏎") for place in (50, key)]
            assert [said[1], said[2]] == texts
            assert float(said[3]) == pytest.approx(float(row[key]), rel=0.05 if row[key] < 0.001 else 0.005)
            assert int(said[4]) == rank + 1


def test_a_masked_cell_is_said_to_be_masked(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        change(page, pinQuery=10, pinKey=40)
        until(page, lambda: "masked: this query cannot attend to this key" in spoken(page), "the sentence")
        assert page.inner_text(".weight-large") == "masked"


@pytest.mark.slow
def test_a_pinned_query_is_told_with_the_key_it_looks_at_most(browser: Browser, small: Handle, trace: Trace) -> None:
    row = trace[0].batch(0).head(1)[33]
    with shown(browser, small.url) as page:
        change(page, head=1, pinQuery=33)
        said = until(page, lambda: re.search(r"attends most to key (\d+).*weight (\S+)$", spoken(page)), "the sentence")
        assert int(said[1]) == int(row.argmax())
        assert float(said[2]) == pytest.approx(float(row.max()), rel=0.005)


@pytest.mark.slow
def test_held_keys_do_not_flood_the_screen_reader(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        focus_map(page)
        page.evaluate("""() => {
          window.sentences = 0;
          const region = document.querySelector("[aria-live=polite][aria-atomic]");
          const all = {childList: true, characterData: true, subtree: true};
          new MutationObserver(() => window.sentences++).observe(region, all);
        }""")
        for _ in range(20):
            page.keyboard.press(".")
        page.wait_for_timeout(600)
        assert 1 <= page.evaluate("window.sentences") <= 5


def table_rows(page: Page) -> list[tuple[str, str, float]]:
    """Query, key and weight of each line of the table."""
    cells = page.evaluate(
        """() => [...document.querySelectorAll(".strongest-table tbody tr")]
             .map((row) => [...row.children].map((cell) => cell.innerText))"""
    )
    return [(query.split()[0], key.split()[0], float(weight)) for query, key, weight in cells]


def without_self_and_first(weights: Tensor) -> Tensor:
    """What the table lists unless it is told otherwise."""
    rest = weights.clone().fill_diagonal_(0)
    rest[:, 0] = 0
    return rest


@pytest.mark.parametrize("centre", [*slow_cases(None), {"query": 50, "key": 20}], ids=["all", "a part"])
def test_the_table_holds_the_strongest_twenty_links_in_view(
    browser: Browser, small: Handle, trace: Trace, centre: dict[str, int] | None
) -> None:
    weights = without_self_and_first(trace[1].batch(0).head(2)[:])
    with shown(browser, small.url) as page:
        change(page, layer=1, head=2, centre=centre, zoom=centre and 48)
        drawn(page)
        page.click("summary:has-text('View')")
        page.click("text=Strongest links")
        until(page, lambda: "exact" in page.inner_text(".strongest-table caption"), "the table")
        (query, key) = (slice(*visible(page)[side]) for side in ("query", "key"))
        part = weights[query, key]
        best = part.flatten().argsort(descending=True)[:20].tolist()
        true = [(query.start + at // part.shape[1], key.start + at % part.shape[1]) for at in best]
        found = table_rows(page)
        page.check("text=to the first token")
        until(
            page, lambda: any(key == "0" for _, key, _ in table_rows(page)) or key.start > 0, "links to the first token"
        )
    assert sorted((int(one), int(other)) for one, other, _ in found) == sorted(true)
    assert [value for *_, value in found] == sorted((value for *_, value in found), reverse=True)
    for one, other, value in found:
        assert value == pytest.approx(float(weights[int(one), int(other)]), rel=0.005)


def test_the_table_of_too_many_pairs_says_that_it_is_approximate_and_names_the_strongest(browser: Browser) -> None:
    weights = without_self_and_first(long_trace()[5].batch(0).head(4)[:])
    with smollm2_served(long_trace()) as handle, shown(browser, handle.url) as page:
        change(page, layer=5, head=4)
        drawn(page)
        page.click("summary:has-text('View')")
        page.click("text=Strongest links")
        caption = until(page, lambda: page.inner_text(".strongest-table caption"), "the table")
        assert "approximate" in caption
        seen = visible(page)
        assert seen["query"] == [0, len(weights)]
        first = page.locator(".strongest-table tbody tr >> nth=0").inner_text()
        spans = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", first.replace(".", " x"))][:2]
        assert float(weights[spans[0]].max()) > 0.9 * float(weights.max())


# Machado, Oliveira and Fernandes (2009), the whole defect, on linear light.
SIGHTS = {
    "all colours": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def seen_by(sight: str, colours: np.ndarray) -> np.ndarray:
    """Colours of 0 to 255 as somebody sees them, in CIE L*a*b*: distances are about what an eye tells apart."""
    share = colours / 255
    light = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(light @ SIGHTS[sight].T, 0, 1) @ TO_XYZ.T / TO_XYZ.sum(1)
    root = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * root[:, 1] - 16, 500 * (root[:, 0] - root[:, 1]), 200 * (root[:, 1] - root[:, 2])], 1)


def source_with(text: str) -> str:
    """The part of the page's source that holds a text, wherever it lies."""
    found = [source for path in (WEB / "src").rglob("*.ts") if text in (source := path.read_text())]
    assert len(found) == 1
    return found[0]


def colour_tables() -> dict[str, np.ndarray]:
    """The tables as the page has them: the first entry, then letters for steps, "m" for none."""
    source = source_with("Encoded = {")
    tables = {"grey": np.repeat(np.arange(256)[:, None], 3, 1)}
    for name, first, steps in re.findall(r"(\w+): Encoded = \{\s*first: \[(.*?)\],\s*steps:(.*?),\s*\}", source, re.S):
        letters = "".join(re.findall(r'"([a-z]+)"', steps))
        moves = np.array([ord(letter) - ord("m") for letter in letters]).reshape(3, 255).T
        start = np.array([int(value) for value in first.split(",")])
        tables[name] = np.concatenate([start[None], start + moves.cumsum(0)])
    return tables


def test_the_tables_were_read_whole() -> None:
    assert {name: table.shape for name, table in colour_tables().items()} == dict.fromkeys(
        ("cividis", "viridis", "magma", "grey"), (256, 3)
    )
    assert all(((table >= 0) & (table <= 255)).all() for table in colour_tables().values())


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("name", ["cividis", "viridis", "magma", "grey"])
def test_brighter_is_more_for_every_kind_of_sight(name: str, sight: str) -> None:
    """Every table rises in lightness; sixteen weights along it can be told apart, each from the next."""
    seen = seen_by(sight, colour_tables()[name])
    sampled = seen[np.linspace(0, 255, 16).round().astype(int)]
    assert (np.diff(sampled[:, 0]) > 1).all(), "lightness alone rises from sample to sample"
    assert (np.linalg.norm(np.diff(sampled, axis=0), axis=1) > 2.3).all(), "2.3 is what an eye can just tell apart"
    # Entries beside each other may differ by a step of one channel only, which a defect can turn around.
    assert (np.diff(seen[::4, 0]) > 0).all()


def themes() -> dict[str, dict[str, str]]:
    source = source_with("const lightTheme: Theme")
    return {
        name: dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', body))
        for name, body in re.findall(r"const (light|dark)Theme: Theme = \{(.*?)\};", source, re.S)
    }


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pins_differ_in_colour_for_every_kind_of_sight(theme: str, sight: str) -> None:
    query, key = seen_by(sight, np.stack([rgb(themes()[theme][pin]) for pin in ("query", "key")]))
    assert np.linalg.norm(query - key) > 20


# Pixels of the overlay along the pinned row or column, and whether each is nearer to the pin's colour than to white.
ALONG = """([side, colour]) => {
  const map = document.querySelector(".map");
  const overlay = map.querySelector(".map-overlay");
  const heat = map.querySelector(".map-heat").getBoundingClientRect();
  const from = overlay.getBoundingClientRect();
  const [left, top] = [Math.round(heat.left - from.left), Math.round(heat.top - from.top)];
  const context = overlay.getContext("2d");
  const size = side === "query" ? Math.round(heat.height) : Math.round(heat.width);
  const long = side === "query" ? Math.round(heat.width) : Math.round(heat.height);
  let best = [];
  for (let at = 0; at < size; at++) {
    const line = side === "query" ? [left, top + at, long, 1] : [left + at, top, 1, long];
    const {data} = context.getImageData(...line);
    const near = [];
    for (let pixel = 0; pixel < long; pixel++) {
      const away = colour.reduce((sum, value, channel) => sum + Math.abs(value - data[pixel * 4 + channel]), 0);
      near.push(data[pixel * 4 + 3] > 200 && away < 90 ? 1 : 0);
    }
    const count = near.reduce((sum, one) => sum + one, 0);
    if (count > best.reduce((sum, one) => sum + one, 0)) best = near;
  }
  return best;
}"""


@pytest.mark.slow
def test_the_pinned_query_is_a_solid_line_and_the_pinned_key_a_dashed_one(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        change(page, pinQuery=60, pinKey=8)
        until(page, lambda: page.is_visible(".weight-large"), "the pins")
        solid, dashed = (
            page.evaluate(ALONG, [side, rgb(themes()["light"][side]).tolist()]) for side in ("query", "key")
        )
    within = [place for place, on in enumerate(solid) if on]
    assert sum(solid) > 0.95 * (within[-1] - within[0]), "but for where the lines cross"
    begins = [place for place, (before, now) in enumerate(pairwise(dashed)) if now > before]
    assert len(begins) > 20
    assert np.median(np.diff(begins)) == pytest.approx(10, abs=1), "six pixels on, four off"


@pytest.mark.slow
def test_with_reduced_motion_nothing_moves(browser: Browser, model_server: Handle) -> None:
    with shown(browser, model_server.url, reduced_motion="reduce") as page:
        for scene in scenes(page):
            assert page.evaluate("document.getAnimations().length") == 0, scene
            slow = page.evaluate("""() => [...document.querySelectorAll("*")].filter((one) => {
              const style = getComputedStyle(one);
              const slow = style.transitionDuration.split(",").some((time) => parseFloat(time) > 0);
              return slow || style.animationName !== "none";
            }).map((one) => one.outerHTML.slice(0, 80))""")
            assert slow == [], scene


@pytest.mark.slow
def test_a_zoom_takes_one_frame(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url, reduced_motion="reduce") as page:
        focus_map(page)
        change(page, zoom=20, centre={"query": 30, "key": 30})
        drawn(page)
        seen = page.evaluate("""() => new Promise((resolve) => {
          const map = document.getElementById("explorer").attnscope.map;
          const zooms = [];
          const look = () => {
            zooms.push(JSON.stringify(map.visible()));
            if (zooms.length < 12) requestAnimationFrame(look); else resolve(zooms);
          };
          document.querySelector(".map").dispatchEvent(new KeyboardEvent("keydown", {key: "+", bubbles: true}));
          requestAnimationFrame(look);
        })""")
        assert len(set(seen)) == 1
        assert state(page)["zoom"] == pytest.approx(20 * 2**0.5)
