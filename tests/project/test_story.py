"""The story of docs/stories has the numbers of its result, and its heads still do what it tells."""

import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "stories" / "far_sight.md"
MADE_BY = "make it again: .venv/bin/python scripts/make_story.py"
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


def test_every_number_of_the_story_stands_in_its_result() -> None:
    assert unmeasured(PAGE.read_text(), result_of(PAGE).read_text()) == [], MADE_BY


def test_a_number_that_was_not_measured_is_found() -> None:
    result = "| 18.8 | 0.369 | +1.250 | 6,971 |"
    assert unmeasured("18.8 has 0.369 and rises by +1.250 at 6,971.", result) == []
    assert unmeasured("18.8 has 0.368, rises by +1.25 or 1.250, at 6,972.", result) == ["0.368", "1.250", "6,972"]


def test_the_pictures_of_the_story_are_there() -> None:
    pictures = [PAGE.parent / link for link in LINK.findall(PAGE.read_text()) if link.endswith(".png")]
    assert pictures
    assert [picture.name for picture in pictures if not picture.is_file()] == []


def row(table: str, name: str) -> list[float]:
    """The numbers of a row of the result, after the name it begins with."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [float(cell) for cell in line.split("|")[2:-1]]


def test_the_result_says_what_the_story_tells() -> None:
    result = result_of(PAGE).read_text()
    losses = result.split("## what is lost without them")[1]
    (absent, *_, far), without, others = (
        row(losses, name) for name in ("all heads, loss", "without 18.8", "without one other, most of 6")
    )
    assert far < absent / 2
    assert without[-1] > 10 * max(others)
    assert far + without[-1] > 0.95 * absent  # as if it had never been there
    assert without[1] < max(others)  # a thousand tokens back, nobody misses it


STORY = runpy.run_path(str(ROOT / "scripts" / "make_story.py"), run_name="story")


@cache
def model() -> tuple[Any, Any]:
    """SmolLM2 and its tokenizer."""
    return STORY["load"](STORY["MODEL"], dtype=torch.float32)


@pytest.fixture(scope="module")
def scenes() -> dict[str, Any]:
    """A short part of the passage, by the distance from its first mention."""
    found = STORY["scenes"](STORY["document"](model()[1]), (1000, 4000), passage=96)
    return {scene.name: scene for scene in found}


def test_a_text_that_repeats_itself_is_found_with_what_came_next() -> None:
    words = torch.arange(40)
    found = STORY["returns"](torch.cat([words, 100 + words, words]), known=16, nearest=50)
    assert found.distances.unique().tolist() == [80]
    assert found.queries[0] == 95
    assert found.keys[0] == 16


def test_scenes_have_the_first_mention_at_their_distance(scenes: dict[str, Any]) -> None:
    for name in ("1,000", "4,000"):
        scene = scenes[name]
        assert len(scene.before) - scene.first == int(name.replace(",", ""))
        assert torch.equal(scene.before[scene.first :][:96], scene.passage)
    absent = scenes["never mentioned"].before.unfold(0, 16, 1)
    assert not (absent == scenes["1,000"].passage[8:24]).all(1).any()


def test_near_by_heads_6_and_7_find_the_first_mention_and_7_is_missed(scenes: dict[str, Any]) -> None:
    found = STORY["experiment"](model()[0], scenes["1,000"], ((0,), (7,), (8,)))
    weights = {head: mention for head, (mention, _) in found.weights.items()}
    assert min(weights[6], weights[7]) > 0.3
    assert weights[8] < 0.05
    assert found.rise((7,)) > 0.3
    assert max(abs(found.rise((0,))), abs(found.rise((8,)))) < 0.1


def test_far_away_head_8_finds_the_first_mention_and_6_does_not(scenes: dict[str, Any]) -> None:
    found = STORY["experiment"](model()[0], scenes["4,000"], ())
    weights = {head: mention for head, (mention, _) in found.weights.items()}
    assert weights[8] > 0.2
    assert weights[6] < 0.1
