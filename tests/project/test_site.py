"""The docs build as a site without a warning, and the site asks nobody else for anything."""

import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from scripts.make_lessons import LESSONS
from tests.explorer.browser import chromium, needs_chromium
from tests.project.test_api import shown_on

ROOT = Path(__file__).resolve().parents[2]
ASKED_FOR = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["'](https?:)?//""")
PNG = re.compile(r'_images/([^"]+\.png)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "docs", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_of_the_docs_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_the_site_works_without_a_network(site: Path) -> None:
    asking = [page.name for page in site.rglob("*.html") if ASKED_FOR.search(page.read_text(encoding="utf-8"))]
    assert asking == []


def test_notebooks_open_in_colab_once_the_project_is_on_github() -> None:
    with_colab_links = runpy.run_path(str(ROOT / "docs" / "conf.py"))["with_colab_links"]
    index = (ROOT / "docs/learn/index.md").read_text(encoding="utf-8")
    assert with_colab_links(index, "") == with_colab_links(index, "https://example.org/attnscope") == index
    links = re.findall(r"\[Colab\]\((\S+?)\)", with_colab_links(index, "https://github.com/someone/attnscope/"))
    assert len(links) == len(LESSONS)
    for link in links:
        start = "https://colab.research.google.com/github/someone/attnscope/blob/main/"
        assert link.startswith(start)
        assert (ROOT / link.removeprefix(start)).is_file()


def test_formulas_need_no_script(site: Path) -> None:
    page = (site / "concepts.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert not re.search(r"<script[^>]*mathjax", page, re.IGNORECASE)
    assert "$$" not in page


def test_every_name_of_the_api_pages_has_a_place_to_link_to(site: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    assert {name for name in shown_on(ROOT / "docs" / "api") if f'id="{name}"' not in pages} == set()


def test_only_charts_are_inverted_in_dark_mode(site: Path) -> None:
    """A chart is mostly white. A colour map is not, and would show other values with inverted colours."""
    pages = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    charts = {
        name for image in re.findall(r'<img[^>]*class="[^"]*\bchart\b[^>]*>', pages) for name in PNG.findall(image)
    }
    assert len(charts) > 20
    assert [name for name in charts if share_of_white(site / "_images" / name) < 0.63] == []


def share_of_white(picture: Path) -> float:
    with Image.open(picture) as image:
        pixels = image.convert("L").histogram()
    return sum(pixels[250:]) / sum(pixels)


def test_a_page_of_the_api_has_copy_buttons_sources_and_context_managers(site: Path) -> None:
    page = (site / "api" / "recording.html").read_text(encoding="utf-8")
    assert "copy.js" in page
    assert "../_modules/attnscope/recording/" in page
    assert "AbstractContextManager[Trace]" in re.sub(r"<[^>]*>", "", page)  # of `record`


SEARCHES = {
    "quickstart": "quickstart.html",
    "KV cache": "models.html",
    "sliding window": "guides/masks.html",
    "attention pattern": "matrix.html",
    "grouped-query": "support.html",
    "sequence length": "faq.html",
    "logit attribution": "heads.html",
    "activation patching": "heads.html",
    "hook": "record.html",
    "tutorial": "guides/ablate.html",
    "query key value": "learn/soft_lookup.html",
    "teacher forcing": "learn/masks.html",
    "cross-attention": "learn/masks.html",
    "multi-head attention": "labs/multi_head_attention.html",
    "rotary": "learn/positions.html",
    "transformer block": "learn/block.html",
    "convolution": "learn/recurrence.html",
    "changelog": "changelog.html",
    "gallery": "gallery.html",
    "roadmap": "roadmap.html",
    "torchtitan": "train.html",
}
"""Words of the field, and the page that the search of the site lists first."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@needs_chromium
def test_words_of_the_field_are_found(site: Path) -> None:
    with served(site) as address, chromium() as browser:
        page, found = browser.new_page(), {}
        for words in SEARCHES:
            page.goto(f"{address}/search.html?q={quote(words)}")
            first = page.wait_for_selector("#search-results ul.search li > a")
            assert first is not None
            found[words] = re.sub(r"[?#].*", "", first.get_attribute("href") or "")
    assert found == SEARCHES
