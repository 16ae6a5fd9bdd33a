"""How fast the explorer shows a long text: the first heatmap, another head, and panning, in Chromium.

In: the model of the full size is SmolLM2, that of the small size has random parameters. Each visit starts
`attnscope look` anew, so that nothing is computed before the page asks for it. Labels of all heads are computed in the
background on the same cores as Chromium; heads are measured while that runs and, in the last visit, after it.
"""

from __future__ import annotations

import pydoc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy
from playwright.sync_api import Browser, Page

from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from attnscope.labs import reference_text
from benchmarks.peers import SMOLLM2, find_model
from benchmarks.publish import missing_table
from benchmarks.publishing.viewer import MAX_SECONDS, WINDOW, chromium, find_chromium
from benchmarks.publishing.web_servers import Live, explorer

START_SECONDS = 900.0  # to record the text
SCORING_SECONDS = 900.0
OPENING_SECONDS, PICTURE_SECONDS, FRAME_SECONDS = 1.0, 0.3, 0.020  # bounds
PAN_STEPS, WARM_UP_FRAMES = 90, 5
PLACES = {"4 tokens per pixel": 0.25, "one token per pixel": 1.0, "12 pixels per token": 12.0}

WATCH = """
localStorage.setItem("attnscope.tour", "yes");
window.mapStates = [];
new MutationObserver((records) => {
  for (const { target } of records)
    if (target.classList.contains("map")) window.mapStates.push([performance.now() / 1000, target.dataset.state]);
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-state"] });
"""
"""Runs before the page: notes when the map changes its state, which is when it has drawn."""

OPENING = """() => {
  const seconds = (name) => performance.getEntriesByName(name)[0].startTime / 1000;
  const drawn = window.mapStates.find(([, state]) => state !== "loading");
  return [seconds("first-contentful-paint"), drawn[0], seconds("first-heatmap")];
}"""
SHOW_HEAD = """async ([layer, head]) => {
  const frame = () => new Promise(requestAnimationFrame), map = document.querySelector(".map");
  window.mapStates.length = 0;
  const start = performance.now() / 1000;
  document.getElementById("explorer").attnscope.store.set({ layer, head }, "push");
  while (window.mapStates.length === 0 || map.dataset.state !== "ready") await frame();
  const drawn = window.mapStates.find(([, state]) => state !== "loading");
  return [drawn[0] - start, window.mapStates.at(-1)[0] - start];
}"""
"""Shows another head, as a click in the navigator does."""

HEADS = """async () => {
  const { store, transport } = document.getElementById("explorer").attnscope;
  const { trace, layer, head } = store.get(), { layers } = await transport.json(`${trace}/meta`);
  const all = layers.flatMap(({ heads }, at) => Array.from({ length: heads }, (_, number) => [at, number]));
  return all.filter(([at, number]) => at !== layer || number !== head);
}"""
"""The layer and head of all heads but the shown one."""

RECORD_FRAMES = """() => {
  const times = (window.frameTimes = []);
  const note = (now) => {
    if (window.frameTimes !== times) return;
    times.push(now / 1000);
    requestAnimationFrame(note);
  };
  requestAnimationFrame(note);
}"""
FRAMES = """() => [window.frameTimes, (window.frameTimes = null)][0]"""
SET = """(change) => document.getElementById("explorer").attnscope.store.set(change)"""
IS_SCORED = """async () => {
  const { store, transport } = document.getElementById("explorer").attnscope;
  return !(await transport.json(`${store.get().trace}/opening`)).pending;
}"""


class Plan(NamedTuple):
    """What is measured."""

    tokens: int
    visits: int
    heads: int
    """That are opened in each visit while labels are computed, and after it."""
    pans: int


class Visit(NamedTuple):
    """Seconds in one visit."""

    opening: tuple[float, float, float]
    """From the navigation to the first paint, to the first picture and to the first heatmap."""
    busy: list[tuple[float, float]]
    """Of each head that is opened while labels are computed, to its first picture and to its heatmap."""
    idle: list[tuple[float, float]]
    """Of each head that is opened after it."""
    frames: dict[str, list[float]]
    """Between frames while panning, by place."""


SMALL = Plan(tokens=1024, visits=1, heads=2, pans=1)
FULL = Plan(tokens=8192, visits=3, heads=6, pans=3)


def tables(size: Size, step: Callable[[str], None], model: str | None = None) -> Iterator[Table]:
    """Visit a text several times, and yield the tables of what was measured."""
    if find_chromium() is None:
        yield missing_table("Explorer", ["chromium"])
        return
    plan = size.choose(small=SMALL, full=FULL)
    with TemporaryDirectory() as place, chromium() as browser:
        folder = Path(place)
        source = find_model((model,) if model else size.choose(small=(), full=SMOLLM2), folder, step)
        text = folder / "text.txt"
        text.write_text(reference_text() + pydoc.plain(pydoc.render_doc("builtins")), encoding="utf-8")
        visits = []
        for number in range(1, plan.visits + 1):
            step(f"visit {number} of {plan.visits}: recording {plan.tokens:,} tokens")
            command = ("look", str(source), str(text), "--tokens", str(plan.tokens))
            with explorer(folder, *command, seconds=START_SECONDS) as live:
                visits.append(make_visit(browser, live, plan, step, is_last=number == plan.visits))
    yield opening_table(visits, plan)
    yield heads_table(visits, plan)
    yield panning_table(visits, plan)


def make_visit(browser: Browser, live: Live, plan: Plan, step: Callable[[str], None], *, is_last: bool) -> Visit:
    """Open the page as its address is printed, and look at heads; in the last visit, also wait and pan."""
    step("opening")
    with visiting(browser, live) as page:
        opening = page.evaluate(OPENING)
        heads = page.evaluate(HEADS)
        chosen = [heads[at * len(heads) // (2 * plan.heads)] for at in range(2 * plan.heads)]
        busy = [tuple(page.evaluate(SHOW_HEAD, head)) for head in chosen[::2]]
        if not is_last:
            return Visit(opening, busy, [], {})
        step("waiting for the labels of the whole text")
        wait_until_scored(page)
        step("heads and panning")
        idle = [tuple(page.evaluate(SHOW_HEAD, head)) for head in chosen[1::2]]
        frames = {name: pan_at(page, zoom, plan) for name, zoom in PLACES.items()}
    return Visit(opening, busy, idle, frames)


@contextmanager
def visiting(browser: Browser, live: Live) -> Iterator[Page]:
    """A page with an empty cache that has drawn its first heatmap."""
    with browser.new_context(viewport=WINDOW) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(f"{live.base}/#token={live.token}")
        page.wait_for_selector("html[data-state=ready]", state="attached", timeout=1000 * MAX_SECONDS)
        yield page


def wait_until_scored(page: Page) -> None:
    """Wait until the labels of the whole text are known."""
    for _ in range(int(SCORING_SECONDS)):
        if page.evaluate(IS_SCORED):
            return
        page.wait_for_timeout(1000)
    raise TimeoutError(f"the labels were not known after {SCORING_SECONDS:g} seconds")


def pan_at(page: Page, zoom: float, plan: Plan) -> list[float]:
    """Drag the map at a zoom back and forth, once to load all tiles, then for the time between frames."""
    middle = {"query": plan.tokens * 3 // 4, "key": plan.tokens // 2}
    page.evaluate(SET, {"view": "map", "centre": middle, "zoom": zoom})
    found: list[float] = []
    for number in range(plan.pans + 1):
        page.wait_for_timeout(1500)
        page.wait_for_selector(".map[data-state=ready]", state="attached", timeout=1000 * MAX_SECONDS)
        page.evaluate(RECORD_FRAMES)
        drag(page)
        times = page.evaluate(FRAMES)
        if number > 0:
            found += numpy.diff(times)[WARM_UP_FRAMES:].tolist()
    return found


def drag(page: Page) -> None:
    """Drag the map back and forth for a second or two."""
    box: Any = page.locator("canvas.map-heat").bounding_box()
    x, y = box["x"] + box["width"] / 3, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for at in range(PAN_STEPS):
        away = 15 - abs(at % 30 - 15)
        page.mouse.move(x + 6 * away, y - 4 * away)
    page.mouse.up()


def opening_table(visits: Sequence[Visit], plan: Plan) -> Table:
    """From the navigation to what can be seen."""
    table = Table(
        title="Opening",
        comparison=f"`attnscope look` on {plan.tokens:,} tokens in a window of {WINDOW['width']} x {WINDOW['height']}, "
        f"{plan.visits} visits with a new server and an empty cache each. From the navigation to the first paint; to "
        "the first picture of weights, with 64 x 64 bins from some of the rows; and to the first heatmap, with all "
        "its tiles in view.",
        columns=("to", "median", "longest", "bound", "bound kept"),
    )
    for place, name in enumerate(("first paint", "first picture", "first heatmap")):
        bound = OPENING_SECONDS if name == "first heatmap" else None
        add_times(table, (name,), [visit.opening[place] for visit in visits], bound, upper=100)
    return table


def heads_table(visits: Sequence[Visit], plan: Plan) -> Table:
    """From the choice of a head to what can be seen of it."""
    table = Table(
        title="Another head",
        comparison="From the choice of a head that was not open before to its first picture and its heatmap: "
        f"{plan.heads} heads of each visit while labels are computed in the background, and as many of the last visit "
        "after that.",
        columns=("labels", "to", "median", "95th percentile", "bound", "bound kept"),
    )
    busy = [head for visit in visits for head in visit.busy]
    for labels, heads in (("being computed", busy), ("known", visits[-1].idle)):
        for place, name in enumerate(("first picture", "heatmap")):
            bound = PICTURE_SECONDS if name == "first picture" else None
            add_times(table, (labels, name), [head[place] for head in heads], bound)
    return table


def panning_table(visits: Sequence[Visit], plan: Plan) -> Table:
    """Between frames while the map is dragged."""
    table = Table(
        title="Panning",
        comparison=f"Time between frames while the map is dragged with the mouse, {plan.pans} times at each zoom, "
        "where all tiles are loaded and nothing is computed.",
        columns=("zoom", "median", "95th percentile", "bound", "bound kept"),
    )
    for name, frames in visits[-1].frames.items():
        median, high = numpy.median(frames), numpy.percentile(frames, 95)
        cells = (name, duration(float(median)), duration(float(high)), duration(FRAME_SECONDS))
        table.add(*cells, met=bool(high <= FRAME_SECONDS))
    return table


def add_times(
    table: Table, names: tuple[str, ...], seconds: Sequence[float], bound: float | None, *, upper: float = 95
) -> None:
    """Add a row of the median and of an upper percentile; the bound is for the median."""
    median, high = numpy.median(seconds), numpy.percentile(seconds, upper)
    cells = (*names, duration(float(median)), duration(float(high)))
    if bound is None:
        table.add(*cells, "", "")
    else:
        table.add(*cells, duration(bound), met=bool(median <= bound))
