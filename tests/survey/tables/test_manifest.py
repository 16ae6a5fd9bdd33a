"""The manifest is written last and is the same for every run."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attnscope.cli.survey_tables import describe_survey
from attnscope.errors import AttnScopeError, CheckpointError
from attnscope.models.checked_json import encode_checked_json
from attnscope.survey import Survey, compare
from attnscope.survey.corpus.plan import Problem, Shard, ShardPlan, Span
from attnscope.survey.folder import MANIFEST
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.partials.partial import MAX_PROBLEMS, PartialResult, merge_partials
from attnscope.survey.settings import Settings
from attnscope.survey.tables import parquet
from attnscope.survey.tables.manifest import (
    hash_corpus,
    read_manifest,
    table_files,
    write_manifest,
)
from attnscope.survey.tables.parquet import COLUMNS, write_tables
from tests.survey.changed_json import changed_once
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
    tables = write_tables(tmp_path, merged)
    write_manifest(tmp_path, merged, plan_of(2), SETTINGS, ABOUT, tables)
    found = json.loads((tmp_path / MANIFEST).read_text())
    assert found["format"] == 2
    assert read_manifest(tmp_path) == found
    for name, file in tables.items():
        content = (tmp_path / name).read_bytes()
        stated = {"size": len(content), "rows": file.rows, "sha256": hashlib.sha256(content).hexdigest()}
        assert found["tables"][name] == stated
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
    tables = write_tables(tmp_path, shard_of(0, 0))
    write_manifest(tmp_path, shard_of(0, 0), plan_of(2 * MAX_PROBLEMS), SETTINGS, ABOUT, tables)
    problems = json.loads((tmp_path / MANIFEST).read_text())["problems"]
    assert (problems["count"], len(problems["first"])) == (2 * MAX_PROBLEMS + 3, MAX_PROBLEMS)


def test_a_survey_whose_tables_are_not_all_written_has_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = write_tables(tmp_path, PartialResult.empty())
    write_manifest(tmp_path, PartialResult.empty(), plan_of(0), SETTINGS, ABOUT, tables)
    assert {path.name for path in tmp_path.iterdir()} == {*COLUMNS, MANIFEST}

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "write_file", full)
    with pytest.raises(OSError, match="No space left"):
        write_tables(tmp_path, PartialResult.empty())
    assert not (tmp_path / MANIFEST).exists()


WRONG = (None, True, -1, 2**70, float("nan"), "text", "x" * 70_000, [None], {})


def test_a_manifest_with_any_one_change_is_refused_or_has_all_that_readers_use(tmp_path: Path) -> None:
    before = written_manifest(tmp_path)
    changes, messages = list(changed_once(before, WRONG)), list[str]()
    for changed in changes:
        (tmp_path / MANIFEST).write_bytes(encode_checked_json(changed))  # with the checksum that fits
        try:
            survey = Survey(tmp_path, read_manifest(tmp_path))
        except AttnScopeError as error:
            messages.append(str(error))
            continue
        describe_survey(survey)
        table_files(survey.manifest)
        if any(changed.get(part) != before[part] for part in ("model", "corpus", "settings")):
            compare(survey, survey)
    assert len(changes) > 500
    assert len(messages) > len(changes) // 4
    assert all(len(message.splitlines()) == 1 for message in messages)


def test_any_one_change_of_a_manifest_is_found_by_its_checksum(tmp_path: Path) -> None:
    before = written_manifest(tmp_path)
    checksum = json.loads(encode_checked_json(before))["checksum"]
    for changed in changed_once(before, WRONG):
        if json.dumps(changed) != json.dumps(before):
            (tmp_path / MANIFEST).write_text(json.dumps(changed | {"checksum": checksum}))
            with pytest.raises(AttnScopeError):
                read_manifest(tmp_path)


def test_a_doubled_field_is_refused_and_flipped_bits_are_refused_or_change_nothing(tmp_path: Path) -> None:
    written_manifest(tmp_path)
    whole, before = (tmp_path / MANIFEST).read_bytes(), read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_bytes(whole.replace(b'"shards": 3,', b'"shards": 3, "shards": 3,'))
    with pytest.raises(CheckpointError, match=r"duplicate key 'shards'.*run the same survey command again"):
        read_manifest(tmp_path)
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / MANIFEST).write_bytes(damaged)
        with suppress(AttnScopeError):
            assert read_manifest(tmp_path) == before


def written_manifest(folder: Path) -> dict[str, Any]:
    """Write tables and a manifest; its content, without the checksum."""
    merged = merge_partials(shard_of(number, 0, batches=1) for number in range(2))
    write_manifest(folder, merged, plan_of(1), SETTINGS, ABOUT, write_tables(folder, merged))
    found = json.loads((folder / MANIFEST).read_text())
    found["problems"]["first"] = found["problems"]["first"][:1]
    found["files"] = found["files"][:1]
    found["statistics"] = {"sink": found["statistics"]["sink"]}
    del found["checksum"]
    return found
