"""The page of a watched run: it shows what the run holds, and an alert leads to the map of that moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from attnscope.errors import CheckpointError, SettingError
from attnscope.explorer.launch import explore
from attnscope.explorer.library.watched_run import MAX_COLUMNS, STATISTICS, WatchedRunView
from attnscope.recording import open_trace
from attnscope.telemetry.run_log import ALERTS, STEPS, RunLog, trace_name
from attnscope.telemetry.run_reader import RunReader
from attnscope.telemetry.run_summary import summarize_run
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import drawn, ready, shown, state, until
from tests.explorer.serving import Handle, serving, small_trace
from tests.explorer.test_access import needs_axe, violations_in_every_look
from tests.explorer.test_hostile import IMAGE, SCRIPT, assert_in_place, assert_nothing_ran
from tests.explorer.watched_run import HEADS, LAYERS, make_run, run_served
from tests.explorer.watched_run import STEPS as NUM_STEPS
from tests.telemetry.runs import make_alert, make_statistics, write_run, write_steps

API = "/api/1/watch"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("watch") / "run")


@pytest.fixture(scope="module")
def run(folder: Path) -> RunReader:
    found = RunReader(folder)
    found.update()
    return found


@pytest.fixture(scope="module")
def watched(folder: Path) -> Iterator[Handle]:
    with run_served(folder) as handle:
        yield handle


def first_kept(handle: Handle) -> dict[str, Any]:
    """The first alert that has a trace."""
    return next(alert for alert in handle.get(f"{API}/about").json["alerts"] if alert["has_trace"])


def test_every_number_is_the_runs(watched: Handle, run: RunReader) -> None:
    about = watched.get(f"{API}/about").json
    assert about["steps"] == {"count": NUM_STEPS, "first": [1], "last": [NUM_STEPS]}
    assert [(head["layer"], head["head"]) for head in about["heads"]] == [tuple(head) for head in run.heads]
    assert [about["heads"][row]["layer"] for row in about["order"]] == [head.name.layer for head in summarize_run(run)]
    assert about["num_alerts"] == len(run.alerts) == len(about["alerts"]) > 0
    for name in STATISTICS:
        table = watched.get(f"{API}/table?statistic={name}&columns=100").json
        assert table["steps"] == [[step, step] for step in run.steps]
        assert np.allclose(np.array(table["values"]).T, run.values(name), rtol=1e-4)
        one = watched.get(f"{API}/heads/3?columns=100").json
        assert one["values"][name] == table["values"][3]
    place = watched.get(f"{API}/heads/3?columns=100").json["places"][-1]
    last = {name: int(run.values(f"max_{name}")[-1, 3]) for name in ("sequence", "query", "key")}
    assert place == {"step": NUM_STEPS, **last}


def test_a_column_of_several_steps_has_the_most_extreme(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(103, 4))
    view = WatchedRunView(write_run(tmp_path, logits, every=1), "a run")
    table = view.table("max_logit", 10)
    assert len(table["steps"]) == 10
    assert [first for first, _ in table["steps"][1:]] == [last + 1 for _, last in table["steps"][:-1]]
    for (first, last), column in zip(table["steps"], np.array(table["values"]).T, strict=True):
        assert np.allclose(column, logits[first - 1 : last].max(0), rtol=1e-4)
    places = view.head(2, 10)["places"]
    assert [place["step"] for place in places] == [
        first + int(logits[first - 1 : last, 2].argmax()) for first, last in table["steps"]
    ]


def test_columns_of_entropy_have_the_lowest(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for step, entropy in enumerate([3.0, 0.5, 2.0, 1.0]):
        log.write(
            step, {"a": make_statistics([float(step)], entropy=[entropy], max_key_norm=[np.nan if step else 1])}, []
        )
    log.close()
    view = WatchedRunView(tmp_path, "a run")
    assert view.table("entropy", 2)["values"] == [[0.5, 1.0]]
    assert view.table("max_logit", 2) == {"steps": [[0, 1], [2, 3]], "values": [[1.0, 3.0]], "not_finite": []}


def test_a_run_that_grows_is_shown_and_one_that_is_damaged_is_refused(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    with run_served(tmp_path) as handle:
        assert handle.get(f"{API}/about").json["heads"] == []
        assert handle.get(f"{API}/table?columns=9").json == {"steps": [], "values": [], "not_finite": []}
        assert handle.get(f"{API}/heads/0?columns=9").status == 400
        write_steps(log, np.ones((1, 4)), [5], [make_alert(5)])
        about = handle.get(f"{API}/about").json
        assert (about["steps"]["last"], about["alerts"][0]["row"], about["alerts"][0]["has_trace"]) == ([5], 3, False)
        assert handle.post(f"{API}/open", {"alert": 0}).status == 404
        log.close()
        with (tmp_path / STEPS).open("ab") as file:
            file.write(b"{}\n")
        refused = handle.get(f"{API}/about")
        assert (refused.status, "line 2: damaged" in refused.json["error"]) == (400, True)


def test_an_alert_opens_the_trace_of_its_moment(watched: Handle, run: RunReader, folder: Path) -> None:
    alert = first_kept(watched)
    opened = watched.post(f"{API}/open", {"alert": alert["number"]}).json
    assert (opened["query"], opened["key"]) == (alert["query"], alert["key"])
    trace = open_trace(folder / trace_name(run.alerts[alert["number"]]))
    (matrix,) = (trace[name] for name in trace.layers)
    logit = matrix.max_logit()
    assert float(logit.logits.max()) == pytest.approx(run.alerts[alert["number"]].value, rel=1e-5)
    meta = watched.get(f"/api/1/{opened['trace']}/meta").json
    assert [layer["heads"] for layer in meta["layers"]] == [1]
    assert f"at step {alert['step']}" in meta["name"]


def test_a_trace_outside_the_run_is_not_opened(tmp_path: Path) -> None:
    alert = make_alert(10)
    write_run(tmp_path / "run", np.ones((2, 4)), alerts=[alert])
    small_trace().save(tmp_path / "elsewhere")
    link = tmp_path / "run" / trace_name(alert)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "elsewhere")
    with run_served(tmp_path / "run") as handle:
        assert not handle.get(f"{API}/about").json["alerts"][0]["has_trace"]
        assert handle.post(f"{API}/open", {"alert": 0}).status == 404


def test_addresses_of_a_run_are_guarded_and_refuse_what_is_not_there(watched: Handle) -> None:
    paths = [f"{API}/about", f"{API}/table?statistic=entropy&columns=5", f"{API}/heads/0?columns=5"]
    for path in ("/watch", "/watch.js", "/watch.css", *paths):
        assert watched.get(path, authorization="").status == (401 if path.startswith(API) else 200), path
        assert watched.get(path, origin="http://elsewhere.example").status == 403, path
        assert watched.get(path).status == 200, path
    assert watched.get(f"{API}/about").headers["cache-control"] == "no-store"
    assert watched.post(f"{API}/open", {"alert": 0}, authorization="Bearer ").status == 401
    assert watched.get(f"{API}/table?statistic=beauty&columns=5").status == 400
    assert watched.get(f"{API}/heads/{LAYERS * HEADS}?columns=5").status == 400
    for columns in ("", "0", "-1", "1.5", str(MAX_COLUMNS + 1), "9" * 400, "\u0663"):
        assert watched.get(f"{API}/table?columns={quote(columns)}").status == 400, columns
        assert watched.get(f"{API}/heads/0?columns={quote(columns)}").status == 400, columns
    for row in ("-1", "1.5", "one", str(2**63)):
        assert watched.get(f"{API}/heads/{row}?columns=5").status == 404, row
    for alert in (-1, 2**31, 2**63, 10**400, None, True, 1.0, "0", [0], {}):
        assert watched.post(f"{API}/open", {"alert": alert}).status in (400, 404), alert
    with serving(small_trace()) as other:
        assert all("No watched run is open" in other.get(path).json["error"] for path in paths)
        assert other.post(f"{API}/open", {"alert": 0}).status == 404


def test_large_runs_get_fewer_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.explorer.library.watched_run.MAX_CELLS", 20)
    view = WatchedRunView(write_run(tmp_path, np.ones((50, 4))), "a run")
    table = view.table("max_logit", 50)
    assert (len(table["steps"]), table["steps"][-1][1]) == (5, 500)


def test_explore_opens_a_run_alone(folder: Path, tmp_path: Path) -> None:
    with contextlib.closing(explore(folder, open_browser=False, block=False, say=lambda _: None)) as server:
        assert Handle(server).get("/api/1/session").json["watch"] is True
        assert Handle(server).get(f"{API}/about").json["name"] == "run"
    with pytest.raises(SettingError, match="expected one watched run and nothing else, got 2 folders"):
        explore(folder, folder, open_browser=False, block=False)
    write_run(tmp_path, np.ones((1, 4)))
    (tmp_path / ALERTS).write_bytes(b"{}\n")
    with pytest.raises(CheckpointError, match="line 1: damaged"):
        explore(tmp_path, open_browser=False, block=False)


def side(page: Page) -> str:
    return page.inner_text(".watch-side")


@needs_chromium
def test_the_page_opens_at_the_worst_head_and_an_alert_leads_to_its_map(browser: Browser, watched: Handle) -> None:
    about, alert = watched.get(f"{API}/about").json, first_kept(watched)
    worst = about["heads"][about["order"][0]]["name"]
    with shown(browser, watched.url) as page:
        until(
            page, lambda: f"Head {worst}" in side(page) and page.locator(".watch-side dd").count() > 6, "the worst head"
        )
        assert page.evaluate("location.pathname") == "/watch"
        assert f"{LAYERS * HEADS} heads, {NUM_STEPS} measured steps" in page.inner_text(".bar")
        canvas = page.locator(".heads-room canvas")
        box = canvas.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 82, box["y"] + 30)  # the first step of the worst head
        until(page, lambda: page.locator(".heads-card dt").count() > 6, "all numbers of a cell")
        card = page.inner_text(".heads-card")
        assert card.startswith(f"{worst} step 1")
        page.select_option("select >> nth=0", "entropy")
        until(page, lambda: "Bright is low" in page.inner_text(".heads-words"), "another statistic")
        assert page.evaluate("location.hash") == "#statistic=entropy"
        canvas.focus()
        page.keyboard.press("ArrowDown")
        second = about["heads"][about["order"][1]]["name"]
        until(page, lambda: f"Head {second}" in side(page), "the next head")
        page.evaluate("head => { location.hash = `#order=layer&head=${head}`; }", worst)
        until(page, lambda: f"Head {worst}" in side(page), "the head of an address that was pasted over this one")
        assert page.input_value("select >> nth=1") == "layer"
        page.click(f".watch-alert[data-alert='{alert['number']}'] button >> nth=1")
        page.wait_for_selector(".map[data-state=ready]", state="attached")
        drawn(page)
        assert (state(page)["pinQuery"], state(page)["pinKey"]) == (alert["query"], alert["key"])
        page.click("text=← Run")
        ready(page)
        until(page, lambda: page.evaluate("location.pathname") == "/watch", "the way back")


@needs_chromium
@needs_axe
def test_the_page_is_accessible(browser: Browser, watched: Handle) -> None:
    with shown(browser, watched.url, bypass_csp=True) as page:
        until(page, lambda: page.locator(".watch-side dd").count() > 6, "numbers")
        assert violations_in_every_look(page, "a watched run") == {}


@needs_chromium
def test_names_from_a_file_are_text(browser: Browser, tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write(
        1,
        {IMAGE: make_statistics([1.0]), SCRIPT: make_statistics([2.0])},
        [make_alert(1, 0, layer=IMAGE, rule=IMAGE, reason=SCRIPT)],
    )
    log.close()
    with run_served(tmp_path) as handle, shown(browser, handle.url) as page:
        until(page, lambda: "window.hacked" in side(page), "names")
        assert_nothing_ran(page)
        assert_in_place(page, "hostile names")
