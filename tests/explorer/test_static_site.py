"""A published site shows what the server would show, from files alone."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope.attention import ALiBi, Causal, Sinks, Softcap, Window
from attnscope.errors import SettingError
from attnscope.explorer.static_site.plan import check_budget, head_size, select_heads
from attnscope.explorer.static_site.publish import estimate, publish_trace
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.pages import STORE, change, drawn, in_trouble, ready, state, until
from tests.explorer.range_server import hosted
from tests.explorer.serving import Handle, serving, small_trace
from tests.explorer.synthetic import random_head, trace_of
from tests.explorer.test_static_export import ANSWER, FIND, assert_alike, paths

PRECISION = 2e-5  # of a weight whose score was summed in single precision
BODIES = f"""(paths) => Promise.all(paths.map(async (path) => {{
  const body = await {FIND}.bytes(path);
  return body && btoa(Array.from(new Uint8Array(body), (one) => String.fromCharCode(one)).join(""));
}}))"""
LONG = 2101  # tokens: the two deepest levels have more than 16 tiles, and are computed in the browser


def random_call(length: int, heads: int, key_heads: int, *, dtype: torch.dtype = torch.float32, **options: Any) -> Call:
    chance = torch.Generator().manual_seed(length)
    query = 2 * torch.randn(1, heads, length, 16, generator=chance)
    key = torch.randn(1, key_heads, length, 16, generator=chance)
    value = torch.randn(1, key_heads, length, 4, generator=chance)
    arguments = {"mask": Causal(), "scale": None, **options}
    return Call(query=query.to(dtype), key=key.to(dtype), value=value.to(dtype), **arguments)


def mixed_trace() -> Trace:
    """Layers of all kinds that a browser computes, and one that it cannot."""
    trace = Trace("mixed")
    score = Softcap(20.0) + ALiBi([0.01, 0.04]) + Sinks(torch.tensor([0.5, 2.0]))
    calls = {
        "long": random_call(LONG, 2, 1),
        "window": random_call(301, 2, 1, dtype=torch.bfloat16, mask=Window(64) & Causal()),
        "modified": random_call(279, 2, 2, dtype=torch.float16, score_mod=score),
    }
    trace.layers.update({name: Layer(name, call, cross=False) for name, call in calls.items()})
    weights = torch.softmax(torch.randn(1, 1, 40, 40, generator=torch.Generator().manual_seed(1)), -1).tril()
    trace.layers["dense"] = DenseLayer("dense", weights / weights.sum(-1, keepdim=True))
    return trace


def published(trace: Trace, folder: Path, *names: str) -> Path:
    publish_trace(trace, folder, select_heads(trace, names), name="shown")
    return folder


@contextmanager
def site_and_server(browser: Browser, site: Path, trace: Trace) -> Iterator[tuple[Page, Handle]]:
    """A page of a site, and a server of the same trace."""
    with serving(trace) as handle, hosted(site) as url, opened(browser, url) as page:
        yield page, handle


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(small_trace(), tmp_path_factory.mktemp("sites") / "small")


@pytest.fixture(scope="module")
def small_pair(browser: Browser, small_site: Path) -> Iterator[tuple[Page, Handle]]:
    with site_and_server(browser, small_site, small_trace()) as pair:
        yield pair


@pytest.fixture(scope="module")
def mixed_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(mixed_trace(), tmp_path_factory.mktemp("sites") / "mixed")


@pytest.fixture(scope="module")
def mixed_pair(browser: Browser, mixed_site: Path) -> Iterator[tuple[Page, Handle]]:
    with site_and_server(browser, mixed_site, mixed_trace()) as pair:
        yield pair


def find_trace(server: Handle) -> str:
    return server.get("/api/1/session").json["traces"][0]["trace"]


def assert_same_bodies(page: Page, server: Handle, *asked: str) -> None:
    """The same headers and numbers, but for single precision, which moves a code at the edge of its step by one."""
    for path, found in zip(asked, page.evaluate(BODIES, asked), strict=True):
        there = server.get(f"/api/1/{path}")
        assert (found is None) == (there.status == 204), path
        if found is not None:
            assert_same_body(base64.b64decode(found), there.body, path)


def assert_same_body(here: bytes, there: bytes, path: str) -> None:
    assert (len(here), here[:24]) == (len(there), there[:24]), path
    if there[4] == 1:
        codes = [np.frombuffer(one, np.uint8, offset=32).astype(int) for one in (here, there)]
        assert ((codes[0] == 0) == (codes[1] == 0)).all(), path
        different = np.abs(codes[0] - codes[1])
        assert different.max() <= 1, path
        assert (different > 0).mean() <= 1e-4, path
    else:
        values = [np.frombuffer(one, np.float32, offset=32) for one in (here, there)]
        assert np.allclose(*values, rtol=PRECISION, atol=0, equal_nan=True), path
    assert np.allclose(*(np.frombuffer(one, np.float32, 2, 24) for one in (here, there)), atol=1e-4), path


@needs_chromium
@pytest.mark.parametrize("head", ["1/2", "0/3"])
def test_a_site_answers_as_the_server_does(small_pair: tuple[Page, Handle], head: str) -> None:
    page, server = small_pair
    trace = find_trace(server)
    asked = paths(trace, head)
    for path in asked["json"]:
        there = server.get(f"/api/1/{path}").json
        if path.endswith("/meta"):
            there |= {"unmasked": None, "origin": None}
        here = page.evaluate(ANSWER, [path, False])
        if "find_heads?k0=20" in path:  # the strongest query of several keys is not stored
            assert here["layers"][0]["positions"] is None
            there["layers"][0]["positions"] = None
        assert_alike(here, there)
    assert_same_bodies(page, server, *asked["bytes"])


@needs_chromium
@pytest.mark.parametrize(("layer", "length"), [(0, LONG), (1, 301), (2, 279), (3, 40)])
def test_weights_are_those_of_the_server(mixed_pair: tuple[Page, Handle], layer: int, length: int) -> None:
    page, server = mixed_pair
    trace = find_trace(server)
    heads = 1 if layer == 3 else 2
    deepest = max(0, (-(-length // 256) - 1).bit_length())
    for head in range(heads):
        start, last = f"{trace}/{layer}/{head}", length - 1
        asked = [f"row/{last}", f"col/{last // 2}", "col/0", f"cells?i0={last - 30}&i1={last}&j0=0&j1=40"]
        for z in range(deepest + 1):
            tiles = -(-length // (256 << (deepest - z)))
            corners = {(0, 0), (tiles - 1, 0), (tiles - 1, tiles - 1), (0, tiles - 1), (tiles // 2, tiles // 3)}
            asked += [f"{z}/{y}/{x}?ch={channel}" for y, x in corners for channel in ("mean", "max")]
            asked += [f"marginal/{kind}/{z}/{tiles - 1}" for kind in ("received", "entropy")]
        assert_same_bodies(page, server, *(f"{start}/{path}" for path in asked))
        for path in (f"query/{last}", "key/3", f"links/query/{last}?unit=token&most=9"):
            assert_alike(page.evaluate(ANSWER, [f"{start}/{path}", False]), server.get(f"/api/1/{start}/{path}").json)
        if layer < 3:
            for query, key in ((last, 3), (last, last - 5), (5, 9)):
                path = f"{start}/why?query={query}&key={key}"
                assert_alike(page.evaluate(ANSWER, [path, False]), server.get(f"/api/1/{path}").json)


@needs_chromium
def test_exact_weights_can_be_saved(mixed_pair: tuple[Page, Handle]) -> None:
    page, server = mixed_pair
    path = f"{find_trace(server)}/0/1/block?i0=1000&i1=1005&j0=990&j1=1003&as="
    for kind in ("npy", "csv"):
        here, there = bytes(page.evaluate(ANSWER, [path + kind, True])), server.get(f"/api/1/{path}{kind}").body
        assert len(here) == len(there) if kind == "npy" else here.split(b"\r\n")[0] == there.split(b"\r\n")[0]
        if kind == "npy":
            assert here[:128] == there[:128]
            assert np.allclose(*(np.frombuffer(one, np.float32, offset=128) for one in (here, there)), equal_nan=True)


@needs_chromium
def test_heads_are_found_by_pairs_rows_and_columns(mixed_pair: tuple[Page, Handle]) -> None:
    page, server = mixed_pair
    trace = find_trace(server)
    for link in ("q0=39&q1=40&k0=2&k1=5", "q0=20&q1=23", "k0=7&k1=8", "q0=2000&q1=2001&k0=3&k1=4"):
        path = f"{trace}/find_heads?{link}"
        here, there = page.evaluate(ANSWER, [path, False]), server.get(f"/api/1/{path}").json
        for one, other in zip(here["layers"], there["layers"], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert np.allclose(one["values"], other["values"], rtol=PRECISION)
                assert one["positions"] == other["positions"]


@needs_chromium
def test_a_site_opens_every_view_and_asks_nobody_else(browser: Browser, small_site: Path) -> None:
    with hosted(small_site) as url, opened(browser, f"{url}#1/-/L1H2/map?pin=q40,k12", fresh=True) as page:
        hosts = set()
        page.on("request", lambda request: hosts.add(request.url.partition("?")[0].rpartition("/")[0][: len(url) - 1]))
        assert (state(page)["layer"], state(page)["head"]) == (1, 2)
        for layer, head in ((0, 0), (1, 3)):
            change(page, layer=layer, head=head, pinQuery=40, pinKey=12)
            drawn(page)
            until(page, lambda: page.is_visible(".cell-panel .weight-large"), "the pinned cell")
        for view in ("text", "heads", "map"):
            change(page, view=view)
            until(page, lambda view=view: f"/{view}" in page.evaluate("location.hash"), view)
            page.wait_for_timeout(300)
        page.fill(".ask-input", "romeo")
        page.wait_for_selector("[role=option]")
        page.press(".ask-input", "Enter")
        until(page, lambda: state(page)["pinQuery"] == 16, "the last letter of romeo")
        assert hosts <= {url[:-1]}
        told = page.evaluate(f"{FIND}.post('run', {{text: 'x'}}).catch((error) => error.message)")
        assert "no model runs" in told


@needs_chromium
def test_a_view_is_embedded_in_a_page_of_another_origin(browser: Browser, small_site: Path, tmp_path: Path) -> None:
    with hosted(small_site) as url, hosted(tmp_path) as other, browser.new_context() as context:
        at = f"{url}#1/-/L1H2/map?pin=q40,k12&note=copies%20the%20name"
        (tmp_path / "index.html").write_text(f'<iframe src="{at}" width="900" height="600"></iframe>')
        page = context.new_page()
        page.goto(other)
        frame = page.frame_locator("iframe")
        frame.locator("html[data-state=ready]").wait_for(state="attached")
        frame.locator(".cell-panel .weight-large").wait_for()
        note = frame.get_by_role("region", name="Note in the link")
        assert note.locator("p").inner_text() == "copies the name"
        shown = page.frames[1].evaluate(f"{STORE}.get()")
        assert (shown["layer"], shown["head"], shown["pinQuery"], shown["pinKey"]) == (1, 2, 40, 12)


@needs_chromium
def test_a_host_without_ranges_is_named(browser: Browser, mixed_site: Path) -> None:
    with hosted(mixed_site, ranges=False) as url, in_trouble(browser, f"{url}#1/-/L0H0/map") as page:
        until(
            page, lambda: "attnscope" in page.evaluate("Object.keys(document.getElementById('explorer'))"), "the page"
        )
        trace = page.evaluate(f"{FIND}.json('session')")["traces"][0]["trace"]
        answer = page.evaluate(ANSWER, [f"{trace}/0/0/0/0/0?ch=mean", True])
        assert "ignores range requests" in answer["refused"]


@needs_chromium
@pytest.mark.parametrize(
    ("change_of", "told"),
    [
        (lambda manifest: manifest | {"version": 99}, "This site has format 99"),
        (lambda manifest: manifest | {"format": "other"}, "does not describe a site"),
    ],
)
def test_another_format_is_refused(
    browser: Browser, small_site: Path, tmp_path: Path, change_of: Any, told: str
) -> None:
    site = tmp_path / "site"
    shutil.copytree(small_site, site)
    manifest = json.loads((site / "manifest.json").read_text())
    (site / "manifest.json").write_text(json.dumps(change_of(manifest)))
    with hosted(site) as url, in_trouble(browser, url) as page:
        page.wait_for_selector("html[data-state=error]", state="attached")
        assert told in page.inner_text("[role=alert]")


@needs_chromium
def test_a_file_of_another_publication_is_refused(browser: Browser, small_site: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(small_site, site)
    archive = next(site.glob("*/L000/H000.bin"))
    archive.write_bytes(archive.read_bytes() + b"more")
    with hosted(site) as url, in_trouble(browser, f"{url}#1/-/L1H0/map") as page:
        ready(page)
        answer = page.evaluate(ANSWER, [f"{archive.parents[1].name}/0/0/0/0/0?ch=mean", True])
        assert "is not the file that the manifest describes" in answer["refused"]


def test_only_some_heads_are_published(tmp_path: Path) -> None:
    site = published(small_trace(), tmp_path / "site", "L1H2", "l0h3")
    assert sorted(path.relative_to(site).as_posix()[33:] for path in site.glob("*/L*/H*.bin")) == [
        "L000/H003.bin",
        "L001/H002.bin",
    ]
    manifest = json.loads((site / "manifest.json").read_text())
    assert manifest["session"]["file"] == {"heads": [[0, 3], [1, 2]]}
    for card in manifest["traces"].values():
        assert all([one["layer"], one["head"]] in [[0, 3], [1, 2]] for one in card["opening"]["cards"])


def test_the_manifest_has_the_checksum_of_every_file(small_site: Path) -> None:
    manifest = json.loads((small_site / "manifest.json").read_text())
    names = {path.relative_to(small_site).as_posix() for path in small_site.rglob("*") if path.is_file()}
    assert names == {*manifest["files"], "manifest.json"}
    for name, (size, digest) in manifest["files"].items():
        content = (small_site / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, digest), name


@pytest.mark.parametrize("name", ["small", "mixed"])
def test_the_estimate_is_an_upper_bound(name: str, request: pytest.FixtureRequest) -> None:
    site: Path = request.getfixturevalue(f"{name}_site")
    trace = {"small": small_trace, "mixed": mixed_trace}[name]()
    heads = select_heads(trace, [])
    expected = estimate(trace, heads)
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) <= expected.max_bytes
    assert (expected.num_heads, expected.seconds > 0) == (len(heads), True)


@pytest.mark.timed
@pytest.mark.parametrize(("tokens", "count"), [(64, 60), (1024, 12), (8192, 4)])
def test_the_estimated_time_is_about_right_at_any_length(tokens: int, count: int, tmp_path: Path) -> None:
    trace = trace_of([[random_head(tokens, dim=64, seed=head) for head in range(count)]])
    heads = select_heads(trace, [])
    expected = estimate(trace, heads).seconds
    taken = timeit.timeit(lambda: publish_trace(trace, tmp_path / "site", heads), number=1)
    assert 0.3 < expected / taken < 3


def test_a_site_over_budget_is_refused_with_what_fits() -> None:
    trace = mixed_trace()
    heads = select_heads(trace, [])
    total = check_budget(trace, heads, None)
    assert check_budget(trace, heads, total) == total
    with pytest.raises(SettingError, match=r"the first 6 of 7 heads fit, up to L2H1: choose heads with --heads"):
        check_budget(trace, heads, total - 1)
    with pytest.raises(SettingError, match="not even one head fits"):
        check_budget(trace, heads, head_size(trace, 0, 0).num_bytes)


@pytest.mark.parametrize("name", ["L9", "L0H9", "L1-L0", "head 3", "H3"])
def test_unknown_heads_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match="publish: "):
        select_heads(small_trace(), [name])


def test_an_existing_folder_and_another_publication_are_left_alone(small_site: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="exists"):
        published(small_trace(), small_site)
    state_folder = tmp_path / "site.part" / ".publish"
    state_folder.mkdir(parents=True)
    (state_folder / "settings.json").write_text("{}")
    with pytest.raises(SettingError, match="unfinished site of another trace"):
        published(small_trace(), tmp_path / "site")


def read_tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
