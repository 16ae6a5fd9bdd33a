"""The heads of docs/stories/far_sight.md still do what it tells."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.smollm2 import own_model
from tests.project.test_stories import result_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "stories" / "far_sight.md"


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


@pytest.fixture(scope="module")
def scenes() -> dict[str, Any]:
    """A short part of the passage, by the distance from its first mention."""
    found = STORY["scenes"](STORY["document"](own_model()[1]), (1000, 4000), passage=96)
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


@pytest.mark.slow
def test_near_by_heads_6_and_7_find_the_first_mention_and_7_is_missed(scenes: dict[str, Any]) -> None:
    found = STORY["experiment"](own_model()[0], scenes["1,000"], ((0,), (7,), (8,)))
    weights = {head: mention for head, (mention, _) in found.weights.items()}
    assert min(weights[6], weights[7]) > 0.3
    assert weights[8] < 0.05
    assert found.rise((7,)) > 0.3
    assert max(abs(found.rise((0,))), abs(found.rise((8,)))) < 0.1


@pytest.mark.slow
def test_far_away_head_8_finds_the_first_mention_and_6_does_not(scenes: dict[str, Any]) -> None:
    found = STORY["experiment"](own_model()[0], scenes["4,000"], ())
    weights = {head: mention for head, (mention, _) in found.weights.items()}
    assert weights[8] > 0.2
    assert weights[6] < 0.1
