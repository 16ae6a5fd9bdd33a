"""What docs/stories/dials.md tells is in its result, and shows on a text of another kind."""

from pathlib import Path
from pydoc_data.topics import topics

import pytest

from attnscope.survey import run_survey
from tests.project.test_stories import result_of

ROOT = Path(__file__).resolve().parents[2]
SMOLLM2 = ROOT / ".cache" / "models" / "smollm2-135m"
PAGE = ROOT / "docs" / "stories" / "dials.md"
EVENLY = 1 / 3  # the split of queries that are spread evenly between nothing and all


def splits(table: str, kind: str) -> list[tuple[float, float]]:
    """How far the heads of a kind are split in prose and in plays."""
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith(f"| {kind} |")]
    return [(float(row[7]), float(row[9].removesuffix(" |"))) for row in rows]


def test_the_result_says_what_the_story_tells() -> None:
    table = result_of(PAGE).read_text().split("## dials and switches")[1].split("##")[0]
    found = {kind: splits(table, kind) for kind in ("previous", "self", "duplicate", "induction")}
    assert {kind: len(rows) for kind, rows in found.items()} == {
        "previous": 8, "self": 5, "duplicate": 5, "induction": 5,
    }  # fmt: skip
    assert all(split > EVENLY for heads in found["induction"] for split in heads)
    assert all(split < EVENLY for heads in found["self"] for split in heads)
    assert sum(max(heads) < EVENLY for heads in found["previous"]) == 7


@pytest.mark.slow
def test_python_s_own_help_has_a_dial_and_a_switch(tmp_path: Path) -> None:
    text = tmp_path / "help.txt"
    text.write_text("\n\n".join(topics[name] for name in ("with", "try"))[:3600], encoding="utf-8")
    survey = run_survey(SMOLLM2, text, tmp_path / "survey")
    dial = survey.distribution("blocks.16.attention", 0, "previous")
    switch = survey.distribution("blocks.18.attention", 6, "induction")
    assert dial.mean > 0.6
    assert dial.split < EVENLY
    assert 0.2 < switch.mean < 0.6
    assert switch.split > EVENLY
