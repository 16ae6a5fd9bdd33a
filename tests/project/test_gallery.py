"""The gallery shows every picture of the docs, below the command that makes it."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
GALLERY = DOCS / "gallery.md"
PICTURE = re.compile(r"\[!\[[^\]]+\]\(([^)]+)\)\]\([^)]+\)")  # one that is a link to its page
DRAWN_BY_HAND = {"images/data_flow.svg"}


def pictures_without_a_command(text: str) -> list[str]:
    """Pictures of sections in which no block of commands comes first."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    return [picture for section in sections for picture in PICTURE.findall(section.split("```bash\n")[0])]


def test_every_picture_is_in_the_gallery() -> None:
    there = {str(path.relative_to(DOCS)) for path in (DOCS / "images").rglob("*.*")} - DRAWN_BY_HAND
    shown = PICTURE.findall(GALLERY.read_text(encoding="utf-8"))
    assert len(shown) == len(set(shown))
    assert there - set(shown) == set()


def test_every_picture_is_below_a_command() -> None:
    assert pictures_without_a_command(GALLERY.read_text(encoding="utf-8")) == []


def test_a_picture_without_a_command_is_found() -> None:
    good = "## A\n\n```bash\nmake a\n```\n\n[![a](a.png)](a.md)\n"
    assert pictures_without_a_command(good) == []
    assert pictures_without_a_command(good + "\n## B\n\n[![b](b.png)](b.md)\n") == ["b.png"]
