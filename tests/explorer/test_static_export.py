"""A saved page shows what the server would show, from the file alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from attnscope.errors import AttnScopeError, SettingError
from attnscope.explorer.static_export.bundle import Bundle
from attnscope.explorer.static_export.exporter import make_fragment, render_page
from attnscope.recording import Trace
from tests.explorer.browser import BEEN_HERE, WATCH_POLICY, needs_chromium
from tests.explorer.pages import change, drawn, in_trouble, ready, small_served, state, until
from tests.explorer.picture import Picture, agrees, settled, taken
from tests.explorer.serving import Handle, small_trace
from tests.explorer.synthetic import Synthetic, random_head, trace_of
from tests.explorer.test_hostile import HOSTILE, IMAGE, SCRIPT, assert_nothing_ran, unsafe_places, weights

pytestmark = needs_chromium

MOST = 12_000_000
PRECISION = 1e-5  # of sums of weights in single precision
LONG = 8192
FIND = "document.getElementById('explorer').attnscope.transport"
ANSWER = f"""async ([path, bytes]) => {{
  const answer = await (bytes ? {FIND}.bytes(path) : {FIND}.json(path)).catch((error) => ({{refused: error.message}}));
  return answer instanceof ArrayBuffer ? [...new Uint8Array(answer)] : answer;
}}"""


@contextmanager
def from_disk(browser: Browser, path: Path, at: str = "", **options: Any) -> Iterator[Page]:
    """A file opened without a network; it may ask for nothing but itself, and complain about nothing."""
    complaints: list[str] = []
    with browser.new_context(viewport={"width": 1000, "height": 700}, offline=True, **options) as inside:
        page = inside.new_page()
        page.add_init_script(BEEN_HERE)
        page.add_init_script(WATCH_POLICY)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != page.url else None)
        page.goto(path.as_uri() + at)
        ready(page)
        complaints.clear()  # the page itself
        yield page
        complaints += page.evaluate("window.breaches")
    assert complaints == []


@pytest.fixture(scope="module")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "small.html"
    small_trace().save_page(path, layer=1, head=2)
    return path


@pytest.fixture(scope="module")
def both(browser: Browser, small_page: Path) -> Iterator[tuple[Page, Handle]]:
    """A saved page, and a server of the same trace."""
    with small_served() as handle, from_disk(browser, small_page) as page:
        yield page, handle


def assert_alike(here: Any, there: Any) -> None:
    """The same JSON; numbers as single precision has them, and of equals in any order."""
    if isinstance(there, dict):
        assert here.keys() == there.keys()
        for name in there:
            assert_alike(here[name], there[name])
    elif isinstance(there, list) and there and isinstance(there[0], list) and not isinstance(there[0][-1], str):
        assert np.allclose(np.array(here, float), np.array(there, float), rtol=PRECISION, atol=1e-9)
    elif isinstance(there, list):
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            assert_alike(one, other)
    elif isinstance(there, float):
        assert np.isclose(here, there, rtol=PRECISION, atol=PRECISION)
    else:
        assert here == there


def paths(trace: str, head: str) -> dict[str, list[str]]:
    """What the page may ask of a head of 72 tokens: in JSON, and in bytes."""
    layer = f"{trace}/{head.partition('/')[0]}"
    tokens = range(0, 72, 7)
    sides = ("query", "key")
    return {
        "json": [
            f"{trace}/meta",
            *(
                f"{layer}/tokens?side={side}&from={start}&to={stop}"
                for side in sides
                for start, stop in ((0, 72), (9, 30))
            ),
            *(f"{layer}/text?side={side}&from=0&to=72" for side in sides),
            *(f"{layer}/{kind}?side={side}" for kind in ("sections", "words") for side in sides),
            *(
                f"{layer}/find?side=query&text={text}&after=3&backward={way}"
                for text in ("O", "romeo%3A", "z")
                for way in "01"
            ),
            f"{layer}/heads",
            f"{trace}/find_heads?q0=70&q1=71&k0=3&k1=9",
            f"{trace}/find_heads?q0=20&q1=30",
            f"{trace}/find_heads?k0=20&k1=24&l0=1&l1=2",
            f"{trace}/{head}/profile",
            f"{trace}/{head}/scores",
            *(f"{trace}/{head}/{side}/{place}" for side in sides for place in tokens),
            *(
                f"{trace}/{head}/links/{side}/{place}?unit={unit}&most={most}"
                for side in sides
                for place in tokens
                for unit in ("token", "word")
                for most in (5, 2000)
            ),
        ],
        "bytes": [
            f"{trace}/{head}/0/0/0?ch=mean",
            f"{layer}/thumbs?ch=max",
            *(f"{trace}/{head}/marginal/{kind}/0/0" for kind in ("received", "entropy")),
            *(f"{trace}/{head}/{line}/{place}" for line in ("row", "col") for place in tokens),
            f"{trace}/{head}/cells?i0=16&i1=48&j0=0&j1=32",
            f"{trace}/{head}/cells?i0=71&i1=72&j0=3&j1=72",
        ],
    }


@pytest.mark.parametrize("head", ["1/2", "0/3"])
def test_a_file_answers_as_the_server_does(both: tuple[Page, Handle], head: str) -> None:
    page, server = both
    trace = server.get("/api/1/session").json["traces"][0]["trace"]
    asked = paths(trace, head)
    for path in asked["json"]:
        there = server.get(f"/api/1/{path}").json
        if path.endswith("/meta"):
            there |= {"unmasked": None, "origin": None, "name": "Decoder"}
        assert_alike(page.evaluate(ANSWER, [path, False]), there)
    for path in asked["bytes"]:
        here, there = bytes(page.evaluate(ANSWER, [path, True])), server.get(f"/api/1/{path}").body
        assert (len(here), here[:6], here[8:24]) == (len(there), there[:6], there[8:24]), path
        kind = {1: np.uint8, 2: np.float32}[there[4]]
        values = [np.frombuffer(body, kind, offset=32) for body in (here, there)]
        # Rows are found one by one or all at once, and differ then by their last bit.
        assert np.allclose(*values, rtol=0 if kind is np.uint8 else PRECISION, atol=0, equal_nan=True), path


def test_what_a_file_does_not_hold_is_refused_with_words(both: tuple[Page, Handle]) -> None:
    page, server = both
    trace = server.get("/api/1/session").json["traces"][0]["trace"]
    for path in (f"{trace}/5/0/0/0/0?ch=mean", "0" * 32 + "/meta", "nothing"):
        assert "This file does not hold that" in page.evaluate(ANSWER, [path, True])["refused"]
    assert "without queries and keys" in page.evaluate(ANSWER, [f"{trace}/1/2/why?query=3&key=1", False])["refused"]
    told = page.evaluate(f"{FIND}.post('run', {{text: 'x'}}).catch((error) => error.message)")
    assert "no model runs" in told


def test_a_file_knows_where_to_begin_and_what_it_lacks(both: tuple[Page, Handle]) -> None:
    page, server = both
    trace = server.get("/api/1/session").json["traces"][0]["trace"]
    until(page, lambda: not server.get(f"/api/1/{trace}/opening").json["pending"], "the scores")
    assert_alike(page.evaluate(ANSWER, [f"{trace}/opening", False]), server.get(f"/api/1/{trace}/opening").json)
    found = page.evaluate(ANSWER, [f"{trace}/predictions?from=0&to=9", False])
    assert (found["pending"], found["tokens"]) == (False, [])
    assert "without predictions" in found["problem"]
    assert page.evaluate(f"{FIND}.bytes('{trace}/1/2/preview?ch=mean')") is None


def test_a_file_shows_every_head_it_names_and_opens_every_view(browser: Browser, small_page: Path) -> None:
    with from_disk(browser, small_page) as page:
        assert (state(page)["layer"], state(page)["head"]) == (1, 2)
        heads = page.evaluate(f"{FIND}.json('session')")["file"]["heads"]
        assert heads == [[layer, head] for layer in range(2) for head in range(4)]
        for layer, head in heads[::3]:
            change(page, layer=layer, head=head, pinQuery=40, pinKey=12)
            drawn(page)
            until(page, lambda: page.is_visible(".cell-panel .weight-large"), "the pinned cell")
            assert "does not hold" not in page.inner_text("#explorer")
        for view in ("text", "heads", "map"):
            change(page, view=view)
            until(page, lambda view=view: f"/{view}" in page.evaluate("location.hash"), view)
            page.wait_for_timeout(300)
            assert "does not hold" not in page.inner_text("#explorer"), view
        page.fill(".ask-input", "romeo")
        page.wait_for_selector("[role=option]")
        page.press(".ask-input", "Enter")
        until(page, lambda: state(page)["pinQuery"] == 16, "the last letter of romeo")


def test_a_page_saved_in_the_browser_opens_with_what_was_shown(browser: Browser, tmp_path: Path) -> None:
    with small_served() as handle, in_trouble(browser, handle.url) as page:
        ready(page)
        change(page, layer=1, head=3, pinQuery=30, pinKey=4, colours="magma", zoom=20, centre={"query": 30, "key": 10})
        drawn(page)
        page.keyboard.press("e")
        with page.expect_download() as found:
            page.click(".export button:text-is('Save HTML')")
        found.value.save_as(tmp_path / "kept.html")
        before = state(page)
    with from_disk(browser, tmp_path / "kept.html") as page:
        assert {**state(page), "others": []} == {**before, "others": []}
        page.keyboard.press("e")
        said = page.inner_text(".export-kinds")
        assert "This page is such a file" in said
        assert "does not hold exact weights" in said
        with page.expect_download() as found:
            page.click(".export button:text-is('Save PNG')")


def test_an_unmasked_trace_is_saved_with_its_note(browser: Browser, tmp_path: Path) -> None:
    with small_served() as handle, in_trouble(browser, handle.url) as page:
        ready(page)
        with page.expect_response("**/meta"):
            change(page, unmasked=True)
        drawn(page)
        page.keyboard.press("e")
        with page.expect_download() as found:
            page.click(".export button:text-is('Save HTML')")
        found.value.save_as(tmp_path / "if.html")
    with from_disk(browser, tmp_path / "if.html") as page:
        meta = page.evaluate(f"{FIND}.json({json.dumps(state(page)['trace'])} + '/meta')")
        assert "not what the model computed" in meta["note"]
        assert not meta["layers"][0]["causal"]


def assert_shows(picture: Picture, head: Synthetic, bands: list[int], *, maximum: bool = False) -> None:
    rows, columns = picture.rows().of(bands), picture.columns()
    assert len(rows.bins) > 0
    found, place = np.unique(rows.bins, return_inverse=True)
    if picture.stride == 1:
        truth = head.rows(found.tolist())[place]
    else:
        truth = np.stack([head.pooled(picture.stride, band)[int(maximum)] for band in found.tolist()])[place]
    assert agrees(picture.entries(rows, columns), truth[:, columns.bins], picture.range).all()


@pytest.mark.slow
def test_a_head_of_8192_tokens_is_saved_opened_from_disk_and_zoomed(browser: Browser, tmp_path: Path) -> None:
    head = random_head(LONG, dim=64, seed=3)
    path = tmp_path / "long.html"
    head.trace().save_page(path)
    assert path.stat().st_size < MOST
    with from_disk(browser, path, "#1/-/L0H0/map?r=-32,0&agg=mean") as page:
        settled(page)
        assert_shows(taken(page, LONG, LONG), head, [3, 200])
        change(page, zoom=4, centre={"query": 4000, "key": 3950})
        settled(page)
        near = taken(page, LONG, LONG)
        assert near.stride == 1
        assert_shows(near, head, [3990, 4000, 4010])
        change(page, zoom=4, centre={"query": 8000, "key": 700})
        settled(page)
        far = page.evaluate("document.getElementById('explorer').attnscope.map.painted()")
        assert far["stride"] == 4, "as near as the file goes there"
        assert page.inner_text("#explorer").count("does not hold") == 0


def test_other_heads_come_along_whole_or_not_at_all(browser: Browser, tmp_path: Path) -> None:
    """Of a text of 600 tokens a few heads fit: those beside the one that is shown, and each with all its tiles."""
    trace = trace_of([[random_head(600, seed=10 * layer + head) for head in range(8)] for layer in range(6)])
    num_heads = trace.save_page(tmp_path / "some.html", layer=2, head=4)
    assert (tmp_path / "some.html").stat().st_size < MOST
    with from_disk(browser, tmp_path / "some.html") as page:
        heads = page.evaluate(f"{FIND}.json('session')")["file"]["heads"]
        assert 8 < len(heads) == num_heads < 48
        assert all([2, head] in heads for head in range(8))
        name = state(page)["trace"]
        for layer, head in heads:
            tiles = [
                f"{name}/{layer}/{head}/{z}/{y}/{x}?ch={channel}"
                for z, count, channels in ((0, 1, ("mean", "max")), (1, 2, ("mean", "max")), (2, 3, ("mean",)))
                for y in range(count)
                for x in range(y + 1)
                for channel in channels
            ]
            assert page.evaluate(f"(paths) => paths.filter((path) => !{FIND}.hasResponse(path))", tiles) == []


def test_a_hostile_page_runs_nothing_and_asks_for_nothing(browser: Browser, tmp_path: Path) -> None:
    trace = Trace.from_attentions({f"{SCRIPT}\u202e": weights(len(HOSTILE))}, tokens=HOSTILE)
    trace.model = f"</title>{SCRIPT}{IMAGE}\u202e\u0000{'M' * 5000}"
    trace.save_page(tmp_path / "hostile.html")
    text = (tmp_path / "hostile.html").read_text()
    assert len(re.findall("<script", text)) == 2
    assert "onerror" not in re.sub(r"<title>.*?</title>", "", text.partition('<script type="module">')[0])
    with from_disk(browser, tmp_path / "hostile.html") as page:
        for place in range(len(HOSTILE)):
            change(page, pinQuery=len(HOSTILE) - 1, pinKey=place)
        drawn(page)
        until(page, lambda: page.locator(".side-query li").count(), "the query")
        assert unsafe_places(page) == []
        assert_nothing_ran(page)


def test_the_policy_of_a_page_knows_its_own_script_alone(browser: Browser, small_page: Path, tmp_path: Path) -> None:
    tampered = small_page.read_text().replace("<body>", f"<body>{SCRIPT}{IMAGE}")
    (tmp_path / "tampered.html").write_text(tampered)
    with browser.new_context() as inside:
        page = inside.new_page()
        page.add_init_script(WATCH_POLICY)
        page.goto((tmp_path / "tampered.html").as_uri())
        ready(page)
        assert page.evaluate("window.hacked") is None
        assert set(page.evaluate("window.breaches")) >= {"script-src-elem", "script-src-attr"}


def test_a_script_in_a_page_does_not_end_before_its_end() -> None:
    script = 'const a = "</script><!-- <script>"; // ünï'
    assets = {"explorer.js": script.encode(), "explorer.css": b"p{color:red}", "index.html": b""}
    page = render_page(assets, "{}", "a title", "#1/-/L0H0/map").decode()
    inner = page.partition('<script type="module">')[2]
    assert inner.startswith('const a = "\\x3c/script>\\x3c!-- \\x3cscript>"; // ünï</script>')
    with pytest.raises(SettingError, match="style sheet"):
        render_page({**assets, "explorer.css": b"</style>"}, "{}", "a title", "")


@pytest.mark.parametrize(
    ("at", "opened"),
    [
        ("", "#1/ff/L1H2/map"),
        ("#1/ab/L0H0/text?pin=q3,k4&z=2.5&unmasked=1&abl=L1H1&cmp=ab:L1H1,side", "#1/ff/L1H2/text?pin=q3,k4&z=2.5"),
        ("#1/ab/L0H0/sentence", "#1/ff/L1H2/map"),
        ('#1/ab/L0H0/map?x="><script>', "#1/ff/L1H2/map?x=%22%3E%3Cscript%3E"),
        ("javascript:alert(1)", "#1/ff/L1H2/map"),
        ("#1/ab/L0H0/map?" + "x" * 3000, "#1/ff/L1H2/map"),
    ],
)
def test_the_address_of_a_page_names_what_is_in_it(at: str, opened: str) -> None:
    assert make_fragment(at, "ff", (1, 2)) == opened


def test_a_pack_keeps_what_fits_and_each_content_once() -> None:
    pack, noise = Bundle(3000), np.random.default_rng(0).bytes(1000)
    assert pack.add({"one": noise, "same": noise, "none": None})
    used = pack.used
    assert pack.add({"again": noise})
    assert pack.used == used
    assert not pack.add({"more": np.random.default_rng(1).bytes(1500), "little": b"x"})
    assert "little" not in pack
    assert pack.used <= pack.limit
    assert len(pack.text()) < 3500


def test_a_page_of_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    trace = small_trace()
    for options, words in (
        ({"layer": 9}, "layer from 0 to 1, got 9"),
        ({"head": 4}, "head from 0 to 3 in layer 0, got 4"),
    ):
        with pytest.raises(SettingError, match=words):
            trace.save_page(tmp_path / "page.html", **options)
    with pytest.raises(SettingError, match="cannot write"):
        trace.save_page(tmp_path / "no folder" / "page.html")
    broken = random_head(8)
    broken.query[3] = float("nan")
    with pytest.raises(AttnScopeError, match="NaN"):
        broken.trace().save_page(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_server_makes_a_page_only_of_what_it_has(served: Any) -> None:
    handle = served(small_trace(), page=True)
    trace = handle.get("/api/1/session").json["traces"][0]["trace"]
    good = f"/api/1/{trace}/0/0/page?i0=0&i1=72&j0=0&j1=72"
    assert handle.get(good).headers["content-type"] == "text/html; charset=utf-8"
    assert handle.get(good).headers["cache-control"] == "no-store"
    for wrong in ("i0=0&i1=73&j0=0&j1=72", "i0=72&i1=72&j0=0&j1=72", "", "i0=0&i1=72&j0=0&j1=72&query=72"):
        assert handle.get(f"/api/1/{trace}/0/0/page?{wrong}").status == 400, wrong
    assert handle.get(f"/api/1/{trace}/0/4/page?i0=0&i1=72&j0=0&j1=72").status == 404
