"""Relative links, anchors and pictures in Markdown lead to something that is there. The docs build covers docs only."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name / "README.md" for name in ("benchmarks", "web")),
]
CODE = re.compile(
    r"^(?P<fence>```+|~~~+).*?^(?P=fence)[^\n]*$|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE
)
LINK = re.compile(r"\]\(<?(?P<markdown>[^)\s>]+)|\b(?:href|src)=\"(?P<html>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(?P<title>.+?)\s*#*$", re.MULTILINE)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//")
MADE_BY_THE_BUILD = {".html": ".md"}
"""A page of the site, and what it is made from."""


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)  # the text of a link
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """What `#...` can lead to on a page."""
    text = page.read_text(encoding="utf-8")
    found = set(re.findall(r"^\((\S+)\)=$", text, re.MULTILINE)) | set(re.findall(r"\bid=\"([^\"]+)\"", text))
    seen: dict[str, int] = {}
    for heading in HEADING.finditer(re.sub(r"^```.*?^```[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)):
        anchor = slug(heading["title"])
        found.add(f"{anchor}-{seen[anchor]}" if anchor in seen else anchor)
        seen[anchor] = seen.get(anchor, 0) + 1
    return frozenset(found)


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for link in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        address = link["markdown"] or link["html"]
        if OUTSIDE.match(address):
            continue
        path, _, anchor = address.partition("#")
        target = page.parent / unquote(path) if path else page
        if not target.exists():
            target = target.with_suffix(MADE_BY_THE_BUILD.get(target.suffix, target.suffix))
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(address)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_on_the_page_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `title`: of it\n\n## Twice\n\n## Twice\n\n```bash\n# comment\n```\n")
    page = tmp_path / "page.md"
    good = (
        "[a](other.md#a-title-of-it) [b](other.md#twice-1) [c](https://x.org/#y) [d](#here) `[e](code.md)`\n\n# Here\n"
    )
    page.write_text(good + '\n<a href="other.html">f</a>\n\n```text\n[g](fenced.md)\n```\n')
    assert broken_links(page) == []
    page.write_text(good + '\n[![x](x.png)](y.md) [a](other.md#comment) [b](#there) <img src="z.png">\n')
    assert broken_links(page) == ["x.png", "y.md", "other.md#comment", "#there", "z.png"]
