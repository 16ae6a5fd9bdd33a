"""The explorer in a cell of a real JupyterLab: drawn from the comm alone, at home there, and gone without a trace."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from attnscope.explorer.library.library import Library
from tests.explorer.browser import needs_chromium
from tests.explorer.notebooks import KERNEL, MAX_SECONDS, PANEL, RUNS, Lab, Notebook, jupyter_lab, notebook
from tests.explorer.picture import agrees
from tests.explorer.serving import TEXT, small_trace

pytestmark = needs_chromium

LENGTH = 2048
SETTING_UP = f"""
import gc, os, time
from attnscope.atlas import ByteCache
from attnscope.explorer.service import comm
from attnscope.recording import Trace
from tests.explorer.serving import small_trace
from tests.explorer.synthetic import random_head, trace_of

comm.GRACE_SECONDS = 0.3
trace = small_trace()
long = trace_of([[random_head({LENGTH}, dim=8, seed=seed) for seed in (1, 2)]])

def kept():
    gc.collect()
    return sum(one.nbytes for one in gc.get_objects() if type(one) is ByteCache)

def traces():
    gc.collect()
    return sum(type(one) is Trace for one in gc.get_objects())
"""
AT_FIRST_HEAD = """
from attnscope.explorer.widget import _WIDGETS, make_display_bundle
for one in (trace, long): make_display_bundle(one)
for one, _ in _WIDGETS.values(): one.state = "#1/-/L0H0/map"
"""
SETUP, SHORT, LONG, NEW, BUSY = range(5)
CELLS = (SETTING_UP, "trace", "long", "display(small_trace())", "while not os.path.exists('enough'): time.sleep(0.05)")
REFERENCES = """(root) => {
  const { map, store, transport } = root.attnscope;
  globalThis.watched ??= [];
  watched.push(...[root, map, store, transport, ...root.querySelectorAll("canvas")].map((one) => new WeakRef(one)));
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with jupyter_lab(tmp_path_factory.mktemp("lab")) as found:
        yield found


@pytest.fixture(scope="module")
def opened(browser: Browser, lab: Lab) -> Iterator[Notebook]:
    with notebook(browser, lab, *CELLS) as found:
        yield found
    assert found.complaints == []
    assert found.elsewhere(lab) == []


@pytest.fixture
def cells(opened: Notebook) -> Iterator[Notebook]:
    """The notebook, with everything in its kernel that the cells need, and no output."""
    if opened.request("print('trace' in globals())") != "True":
        opened.run(SETUP)
    opened.request(AT_FIRST_HEAD)
    yield opened
    for cell in (SHORT, LONG, NEW):
        opened.clear(cell)


def until(cells: Notebook, true: Callable[[], Any], what: str, seconds: float = MAX_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited for {what}"
        cells.page.wait_for_timeout(50)


def collected(cells: Notebook) -> dict[str, int]:
    """What the page holds once the garbage has been collected."""
    session = cells.page.context.new_cdp_session(cells.page)
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
        cells.page.wait_for_timeout(100)
    found = {**session.send("Memory.getDOMCounters"), **session.send("Runtime.getHeapUsage")}
    session.detach()
    return {name: int(value) for name, value in found.items()}


def alive(cells: Notebook) -> int:
    """How many of the objects that were watched are still there."""
    collected(cells)
    return cells.page.evaluate("watched.filter((one) => one.deref() !== undefined).length")


def test_a_trace_is_drawn_in_its_cell_from_bytes_of_the_comm_alone(cells: Notebook, lab: Lab) -> None:
    trace = small_trace()
    cells.show(SHORT)
    picture = cells.picture(len(TEXT), len(TEXT))
    rows, columns = picture.rows(), picture.columns()
    weights = trace.layer(0).matrix().batch(0).head(0)[:].double().numpy()
    hidden = np.triu(np.ones_like(weights, dtype=bool), 1)
    truth = np.where(hidden, np.nan, weights)[np.ix_(rows.bins, columns.bins)]
    assert len(np.unique(rows.bins)) > 20
    assert agrees(picture.entries(rows, columns), truth, picture.range).all()
    library = Library()
    entry = library.entry(library.add(trace, name="the same"))
    assert entry
    tile = library.head(entry, 0, 0).atlas.tile(0, 0, 0, "mean").body
    assert any(tile in frame for frame in cells.frames)
    assert cells.elsewhere(lab) == []
    assert [url for url in cells.requests if "/api/1/" in url or "explorer" in url] == []
    assert cells.page.evaluate(f"JSON.stringify({PANEL}.model.toJSON()).length") < 10_000, "the file stays small"


def test_a_cell_that_names_no_head_opens_on_the_one_that_the_explorer_chooses(cells: Notebook) -> None:
    cells.show(NEW)
    until(cells, lambda: cells.state()["pinQuery"] is not None, "the strongest link of the head")
    at = cells.state()
    assert (at["layer"], at["head"]) != (0, 0)


def test_hands_move_it_and_python_knows_where_it_is(cells: Notebook) -> None:
    cells.show(SHORT)
    box = cells.page.locator("canvas.map-heat").first.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    cells.page.mouse.move(x, y)
    cells.page.keyboard.down("Control")
    cells.page.mouse.wheel(0, -300)
    cells.page.keyboard.up("Control")
    until(cells, lambda: cells.state()["centre"], "the zoom")
    zoomed = cells.state()["centre"]
    cells.page.mouse.down()
    cells.page.mouse.move(x - 60, y - 120, steps=4)
    cells.page.mouse.up()
    until(cells, lambda: cells.state()["centre"] != zoomed, "the place")
    cells.explorer.get_by_role("button", name="Layer 1, head 2").click()
    centre, told = cells.state()["centre"], "print(_WIDGETS[id(trace)][0].state)"
    place = f"L1H2/map?c={round(centre['query'], 2):g},{round(centre['key'], 2):g}"
    until(cells, lambda: place in cells.request(told), f"{place} in Python")
    cells.explorer.get_by_role("button", name="Text", exact=True).click()
    until(cells, lambda: "But new struck nine." in cells.explorer.inner_text(), "the text")
    until(cells, lambda: "/text" in cells.request(told), "the view in Python")
    cells.request("_WIDGETS[id(trace)][0].state = '#1/-/L0H3/map?z=20'")
    until(cells, lambda: (cells.state()["head"], cells.state()["view"]) == (3, "map"), "what Python has set")


@pytest.mark.slow
def test_keys_are_its_own_and_the_wheel_is_the_notebooks(cells: Notebook) -> None:
    cells.show(SHORT)
    count = cells.page.evaluate(f"{PANEL}.content.widgets.length")
    cells.page.locator(".explorer .map").first.click()
    for key in ("d", "d", "x", "a", "b", "m", "Delete", "Escape", "0", "0", "}"):
        cells.page.keyboard.press(key)
    until(cells, lambda: cells.state()["layer"] == 1, "the next layer")
    assert cells.page.evaluate(f"{PANEL}.content.widgets.map((one) => one.model.type)") == count * ["code"]
    before, zoom = cells.explorer.bounding_box(), cells.state()["zoom"]
    cells.page.mouse.wheel(0, 60)
    until(cells, lambda: cells.explorer.bounding_box() != before, "the notebook that scrolls")
    assert cells.state()["zoom"] == zoom
    cells.page.keyboard.down("Control")
    cells.page.mouse.wheel(0, -300)
    cells.page.keyboard.up("Control")
    until(cells, lambda: cells.state()["zoom"] != zoom, "the zoom")


@pytest.mark.slow
def test_it_is_as_dark_as_the_notebook(cells: Notebook) -> None:
    cells.show(SHORT)
    chart = cells.page.locator("canvas.chart >> visible=true").first
    bars = """(chart) => [...new Uint32Array(chart.getContext("2d").getImageData(0, 0, chart.width, chart.height).data
      .buffer)].filter((colour) => colour === 0xfff79cbd).length"""
    assert chart.evaluate(bars) == 0
    for name, word in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        cells.page.evaluate("(theme) => jupyterapp.commands.execute('apputils:change-theme', { theme })", name)
        until(cells, lambda word=word: cells.explorer.get_attribute("data-theme") == word, word)
        until(cells, lambda word=word: (chart.evaluate(bars) > 100) == (word == "dark"), f"{word} bars")


@pytest.mark.slow
def test_a_running_cell_does_not_keep_it_waiting_but_a_kernel_that_stands_still_does(cells: Notebook, lab: Lab) -> None:
    process = int(cells.request("print(os.getpid())"))
    cells.show(SHORT)
    asks = "(root) => { root.attnscope.transport.json('session').then(() => { root.dataset.heard = 'yes'; }); }"
    cells.run(BUSY, wait=False)
    until(cells, lambda: cells.page.evaluate(f"{KERNEL}.status") == "busy", "the running cell")
    cells.explorer.evaluate(asks)
    until(cells, lambda: cells.explorer.get_attribute("data-heard"), "an answer")
    assert cells.page.evaluate(f"({RUNS})({BUSY})"), "the cell still runs"
    (lab.folder / "enough").touch()
    until(cells, lambda: not cells.page.evaluate(f"({RUNS})({BUSY})"), "the end of the cell")
    words = cells.page.get_by_text("Waiting for the kernel")
    os.kill(process, signal.SIGSTOP)
    try:
        cells.explorer.evaluate(asks)
        words.wait_for(timeout=5000)
    finally:
        os.kill(process, signal.SIGCONT)
    words.wait_for(state="detached", timeout=5000)


@pytest.mark.slow
def test_a_closed_cell_leaves_nothing_in_the_browser_and_no_tiles_in_the_kernel(cells: Notebook) -> None:
    cells.show(LONG)
    cells.clear(LONG)  # what comes with a cell, once, is there
    empty = collected(cells)
    cells.show(LONG)
    cells.page.locator(".explorer .map").first.click()
    for key in ("+", "+", "+", "]", "r", "c", "v", "t", "h", "?", "Escape", "e", "Escape", "m"):
        cells.page.keyboard.press(key)
        cells.page.wait_for_timeout(150)
    cells.explorer.evaluate(REFERENCES)
    assert collected(cells)["backingStorageSize"] - empty["backingStorageSize"] > 2**20
    assert int(cells.request("print(kept())")) > 2**20
    cells.clear(LONG)
    until(cells, lambda: alive(cells) == 0, "the browser")
    left = collected(cells)
    assert cells.page.locator("canvas").count() == 0
    assert left["nodes"] <= empty["nodes"] + 100  # JupyterLab keeps some of each output
    assert left["backingStorageSize"] <= empty["backingStorageSize"] + 2**18
    until(cells, lambda: cells.request("print(kept())") == "0", "the tiles in the kernel")


@pytest.mark.slow
def test_a_trace_that_nobody_holds_goes_with_its_cell(cells: Notebook) -> None:
    before = int(cells.request("print(traces())"))
    for _ in range(3):
        cells.show(NEW)
        assert int(cells.request("print(traces())")) > before
    cells.clear(NEW)
    until(cells, lambda: int(cells.request("print(traces())")) <= before, "the traces")
    until(cells, lambda: cells.page.evaluate(f"{KERNEL}._comms.size") <= 2 * 2 + 1, "the models in the browser")


@pytest.mark.slow
def test_a_cell_that_is_run_ten_times_takes_no_more_than_once(cells: Notebook) -> None:
    for _ in range(2):
        cells.show(LONG)
    before = collected(cells)
    for _ in range(10):
        cells.explorer.evaluate(REFERENCES)
        cells.show(LONG)
    until(cells, lambda: alive(cells) == 0, "all but the last")
    after = collected(cells)
    assert after["nodes"] <= before["nodes"] + 300
    assert after["jsEventListeners"] <= before["jsEventListeners"] + 300  # of ours alone, ten would be 1,300
    assert after["backingStorageSize"] <= before["backingStorageSize"] + 2**18
    assert after["usedSize"] <= before["usedSize"] + 3 * 2**20  # the browser compiles what it runs often
    assert cells.page.evaluate("attnscopeCode.size") == 1, "one copy of the explorer"


@pytest.mark.slow
def test_a_kernel_that_was_restarted_is_spoken_of(cells: Notebook) -> None:
    cells.show(SHORT)
    cells.page.evaluate(f"() => {KERNEL}.restart()")
    cells.explorer.evaluate("(root) => root.attnscope.store.set({ head: 2 })")
    cells.page.get_by_text("The kernel does not answer; run the cell again.").first.wait_for()
    cells.run(SETUP)
    cells.show(SHORT)
