"""The stories of docs/stories have the numbers of their results, and the pictures that they show."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "stories").glob("*.md"))
MEASURED = re.compile(r"(?<![\w.,])[+-]?\d+\.\d{3}(?![\w.])|(?<![\w.,])\d+,\d{3}(?![\w,])")  # 18.8 is a head
LINK = re.compile(r"\]\(([^)\s#]+)")


def result_of(page: Path) -> Path:
    """The result that a page links to."""
    found = {(page.parent / link).resolve() for link in LINK.findall(page.read_text()) if "benchmarks/results" in link}
    assert len(found) == 1, found
    return found.pop()


def unmeasured(page: str, result: str) -> list[str]:
    """The numbers of a page that its result does not have."""
    text = re.sub(r"^```.*?^```[^\n]*$", "", page, flags=re.DOTALL | re.MULTILINE)
    known = set(MEASURED.findall(result))
    return [number for number in MEASURED.findall(LINK.sub("", text)) if number not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_number_of_a_story_stands_in_its_result(page: Path) -> None:
    result = result_of(page)
    assert unmeasured(page.read_text(), result.read_text()) == [], f"the command in {result.name} makes it again"


def test_a_number_that_was_not_measured_is_found() -> None:
    result = "| 18.8 | 0.369 | +1.250 | 6,971 |"
    assert unmeasured("18.8 has 0.369 and rises by +1.250 at 6,971.", result) == []
    assert unmeasured("18.8 has 0.368, rises by +1.25 or 1.250, at 6,972.", result) == ["0.368", "1.250", "6,972"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pictures_of_a_story_are_there(page: Path) -> None:
    pictures = [page.parent / link for link in LINK.findall(page.read_text()) if link.endswith(".png")]
    assert pictures
    assert [picture.name for picture in pictures if not picture.is_file()] == []
