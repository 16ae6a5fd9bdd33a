"""The page of a gallery lists published sites, without scripts and without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Browser

from attnscope.atlas import codec
from attnscope.cli.main import main
from attnscope.errors import AttnScopeError
from attnscope.explorer.analysis.thumbnails import thumbnails
from attnscope.explorer.static_site.gallery import write_gallery
from attnscope.explorer.static_site.gallery_sites import Opening, read_site
from attnscope.explorer.static_site.plan import select_heads
from attnscope.explorer.static_site.publish import publish_trace
from tests.explorer.browser import needs_chromium
from tests.explorer.range_server import hosted
from tests.explorer.serving import small_trace

HOSTILE = '<script>alert(1)</script>"&'
SITES = {"a": ("one", "Verona"), "b": ("one", "Padua"), "c": ("two", "Verona"), "d #1": (HOSTILE, HOSTILE)}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site, and copies of it by other models and on other texts."""
    folder = tmp_path_factory.mktemp("gallery") / "sites"
    trace = small_trace()
    publish_trace(trace, folder / "a", select_heads(trace, ["L1"]), name="Verona")
    for name, (model, text) in SITES.items():
        if name != "a":
            shutil.copytree(folder / "a", folder / name)
        manifest = json.loads((folder / name / "manifest.json").read_text())
        manifest["session"]["model"], manifest["session"]["traces"][0]["name"] = model, text
        (folder / name / "manifest.json").write_text(json.dumps(manifest))
    (folder / "notes").mkdir()
    (folder / "notes" / "manifest.json").write_text('{"format": "notes"}')
    return folder


@pytest.fixture
def sites(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "sites"))


def opening_of(folder: Path) -> Opening:
    site = read_site(folder)
    assert site is not None
    assert site.opening is not None
    return site.opening


class Elements(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, tag: str, name: str) -> list[str]:
        return [found[name] or "" for kind, found in self.tags if kind == tag and name in found]


def test_every_site_is_listed_by_model_and_text(sites: Path) -> None:
    found = write_gallery(sites, title="Poets")
    assert [site.folder for site in found] == ["d #1", "b", "a", "c"]
    page = Elements((sites / "index.html").read_text())
    assert [tag for tag, _ in page.tags].count("h2") == 3
    assert "Attention of 3 models on 3 texts" in page.text
    assert "72 tokens, 4 heads of 2 layers" in page.text
    assert page.text.count(HOSTILE) == 4  # in the table twice, and in its section
    opening = opening_of(sites / "a")
    targets = {unquote(link.partition("#")[0]) for link in page.values("a", "href")}
    assert targets == {f"./{name}/" for name in SITES}
    assert f"./a/#1/-/L1H{opening.head}/map" in page.values("a", "href")
    assert all((sites / target / "index.html").is_file() for target in targets)


def test_the_page_has_no_script_and_loads_nothing(sites: Path) -> None:
    write_gallery(sites)
    text = (sites / "index.html").read_text()
    page = Elements(text)
    assert not {"script", "iframe", "object", "form"} & {tag for tag, _ in page.tags}
    assert not [name for _, found in page.tags for name in found if name.startswith("on") or name == "style"]
    loaded = page.values("img", "src") + page.values("source", "srcset") + page.values("link", "href")
    assert all(address.startswith("data:") for address in loaded)
    (policy,) = [found["content"] or "" for _, found in page.tags if "http-equiv" in found]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.split("; ")[:3] == ["default-src 'none'", f"style-src 'sha256-{digest}'", "img-src data:"]


def test_the_picture_is_the_most_distinctive_head(sites: Path) -> None:
    manifest = json.loads((sites / "a" / "manifest.json").read_text())
    (trace,) = manifest["traces"].values()
    expected = trace["opening"]["opening"]
    opening = opening_of(sites / "a")
    assert (opening.layer, opening.head, opening.label) == (expected["layer"], expected["head"], expected["label"])
    _, codes = codec.unpack(thumbnails(small_trace()[1].batch(0).head(opening.head), 1).max)
    assert np.array_equal(opening.codes, codes)


def test_it_is_written_again_but_never_over_another_page(sites: Path) -> None:
    write_gallery(sites)
    first = (sites / "index.html").read_bytes()
    shutil.rmtree(sites / "c")
    assert len(write_gallery(sites)) == 3
    assert (sites / "index.html").read_bytes() != first
    (sites / "index.html").write_text("<title>mine</title>")
    with pytest.raises(AttnScopeError, match="is not the page of a gallery"):
        write_gallery(sites)
    assert (sites / "index.html").read_text() == "<title>mine</title>"


def test_a_site_without_scores_has_no_picture(sites: Path) -> None:
    manifest = json.loads((sites / "a" / "manifest.json").read_text())
    (trace,) = manifest["traces"].values()
    trace["opening"]["opening"] = None
    (sites / "a" / "manifest.json").write_text(json.dumps(manifest))
    write_gallery(sites)
    page = Elements((sites / "index.html").read_text())
    assert [tag for tag, _ in page.tags].count("img") == 3
    assert "./a/" in page.values("a", "href")


DAMAGE = {
    "version": (lambda site: site | {"version": 2}, "another version of AttnScope"),
    "trace": (lambda site: site["session"]["traces"].clear(), "expected one trace, got 0"),
    "id": (lambda site: site["session"]["traces"][0].update(trace="../../x"), "invalid id of a trace"),
    "sizes": (lambda site: site["files"].update(x=["many", ""]), "the size of a file is not a number"),
    "head": (lambda site: next(iter(site["traces"].values()))["opening"]["opening"].update(head=99), "does not have"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_manifest_is_an_error(kind: str, sites: Path) -> None:
    change, message = DAMAGE[kind]
    path = sites / "a" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(change(manifest) or manifest))
    with pytest.raises(AttnScopeError, match=message):
        write_gallery(sites)
    assert not (sites / "index.html").exists()


def test_a_damaged_archive_is_an_error(sites: Path) -> None:
    (archive,) = (sites / "a").glob("*/L001/layer.bin")
    archive.write_bytes(bytes(archive.stat().st_size))
    with pytest.raises(AttnScopeError, match="is damaged or missing"):
        write_gallery(sites)


def test_the_command_prints_where_the_page_is(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "--gallery", str(sites), "--name", "Poets"]) == 0
    assert capsys.readouterr().out == f"{sites / 'index.html'}: 4 sites of 3 models\n"
    assert "<h1>Poets</h1>" in (sites / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing TRACE, the folder of a saved trace; or give --gallery DIR"),
        (["--gallery", "sites", "--out", "x"], "--gallery cannot be combined with --out"),
        (["--gallery", "sites", "--estimate"], "--gallery cannot be combined with --estimate"),
        (["--gallery", "sites/a"], "is a site itself"),
        (["--gallery", "sites/notes/.."], "is not the page of a gallery"),
        (["--gallery", "empty"], "no folder in empty is a site"),
        (["--gallery", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, sites: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sites.parent)
    Path("empty").mkdir()
    (sites / "index.html").write_text("mine")
    assert main(["publish", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_errors(width: int, sites: Path, browser: Browser) -> None:
    write_gallery(sites)
    with hosted(sites) as url:
        page = browser.new_page(viewport={"width": width, "height": 800})
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url)
        assert page.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 1)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()
    assert not problems
    assert [one for one in requests if not one.startswith("data:")] == [url]
