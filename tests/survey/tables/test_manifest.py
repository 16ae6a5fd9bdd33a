"""The manifest is written last and is the same for every run."""

import json
from pathlib import Path

import pytest

from attnscope.survey.corpus.plan import Problem, Shard, ShardPlan, Span
from attnscope.survey.folder import MANIFEST
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.partials.partial import MAX_PROBLEMS, PartialResult, merge_partials
from attnscope.survey.settings import Settings
from attnscope.survey.tables import parquet
from attnscope.survey.tables.manifest import hash_corpus, write_manifest
from attnscope.survey.tables.parquet import COLUMNS, write_tables
from tests.survey.random_shards import shard_of

SETTINGS = Settings(model="model", sources=("corpus",), seed=5)
ABOUT = {"name": "model", "hash": "sha256:0", "parameters": 3}


def plan_of(problems: int) -> ShardPlan:
    """Three shards of two files."""
    first, second = Span("a.txt", "text", 0, 10, "10 1.5"), Span("b.txt", "text", 0, 5, "9 2.5")
    spans = [(first, second), (second._replace(start=5, stop=9),), ()]
    found = tuple(Problem("c.txt", f"byte {place:,}", "broken", 10) for place in range(problems))
    return ShardPlan(tuple(Shard(number, its) for number, its in enumerate(spans)), found, 19, "fingerprint")


def test_a_manifest_says_what_the_survey_is(tmp_path: Path) -> None:
    merged = merge_partials(shard_of(number, 0) for number in range(3))
    write_manifest(tmp_path, merged, plan_of(2), SETTINGS, ABOUT)
    found = json.loads((tmp_path / MANIFEST).read_text())
    assert found["format"] == 1
    assert found["model"] == ABOUT
    assert found["corpus"] == {
        "hash": hash_corpus({number: f"digest {number}" for number in range(3)}),
        "files": 2,
        "bytes": 19,
        "documents": merged.documents,
        "passages": merged.passages,
        "tokens": merged.tokens,
    }
    assert found["settings"]["seed"] == found["seeds"]["sample"] == 5
    assert list(found["statistics"]) == list(STATISTICS)
    assert found["statistics"]["sink"] == {"floor": 1e-4, "ceiling": 1.0, "bins": 232}
    assert found["problems"]["count"] == 2 + 9
    listed = {"file": "c.txt", "location": "byte 1", "reason": "broken", "skipped_bytes": 10}
    assert listed in found["problems"]["first"]
    assert found["problems"]["skipped_bytes"] == 20
    assert found["problems"]["skipped_share"] == 20 / (19 + 20)
    assert found["problems"]["exceeds_max_skipped"] is True
    assert found["settings"]["max_skipped"] == 0.05
    assert found["files"] == [{"file": "a.txt", "version": "10 1.5"}, {"file": "b.txt", "version": "9 2.5"}]


def test_only_the_first_problems_are_listed(tmp_path: Path) -> None:
    write_manifest(tmp_path, shard_of(0, 0), plan_of(2 * MAX_PROBLEMS), SETTINGS, ABOUT)
    problems = json.loads((tmp_path / MANIFEST).read_text())["problems"]
    assert (problems["count"], len(problems["first"])) == (2 * MAX_PROBLEMS + 3, MAX_PROBLEMS)


def test_a_survey_whose_tables_are_not_all_written_has_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables(tmp_path, PartialResult.empty())
    write_manifest(tmp_path, PartialResult.empty(), plan_of(0), SETTINGS, ABOUT)
    assert {path.name for path in tmp_path.iterdir()} == {*COLUMNS, MANIFEST}

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        write_tables(tmp_path, PartialResult.empty())
    assert not (tmp_path / MANIFEST).exists()
