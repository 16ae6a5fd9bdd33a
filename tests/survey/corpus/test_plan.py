import errno
import math
import os
import time

import pyarrow as arrow
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from attnscope.errors import SettingError
from attnscope.stores import retries
from attnscope.survey.corpus import plan as plans
from attnscope.survey.corpus.plan import ShardPlan, plan_shards
from attnscope.survey.settings import Settings

MANY, SECONDS = 5_000, 5.0


def planned(*sources, **settings) -> ShardPlan:
    return plan_shards(Settings(model="model", sources=tuple(map(str, sources)), **settings))


def write_parquet(path, values, *, rows=2, column="text"):
    parquet.write_table(arrow.table({"id": list(range(len(values))), column: values}), path, row_group_size=rows)
    return path


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.integers(1, 200))
def test_the_shards_are_all_bytes_of_all_files_in_order(tmp_path_factory, sizes, most):
    folder = tmp_path_factory.mktemp("sizes")
    for number, size in enumerate(sizes):
        (folder / f"{number}.txt").write_bytes(b"x" * size)
    if not any(sizes):
        with pytest.raises(SettingError, match="is empty"):
            planned(folder, shard_bytes=most)
        return
    plan = planned(folder, shard_bytes=most)
    found = [
        (int(os.path.basename(span.file)[:-4]), at)
        for shard in plan.shards
        for span in shard.spans
        for at in range(span.start, span.stop)
    ]
    assert found == [(number, at) for number, size in enumerate(sizes) for at in range(size)]
    assert [shard.number for shard in plan.shards] == list(range(len(plan.shards)))
    totals = [sum(span.stop - span.start for span in shard.spans) for shard in plan.shards]
    assert all(most <= total < 3 * most for total in totals[:-1])
    assert 0 < totals[-1] < 3 * most
    assert plan.size == sum(sizes)
    assert len(plan.problems) == sizes.count(0)


def test_default_shards_have_at_least_64_kib_and_at_most_512_kib(tmp_path):
    with open(tmp_path / "a.txt", "wb") as file:
        file.truncate(2**20)
    assert len(planned(tmp_path).shards) == 16
    os.truncate(tmp_path / "a.txt", 2**30)
    assert len(planned(tmp_path).shards) == 2**12
    os.truncate(tmp_path / "a.txt", 2**33)
    assert len(planned(tmp_path).shards) == 2**14


def test_the_default_size_bounds_a_shard_until_there_would_be_too_many():
    assert [plans.default_shard_bytes(2**power) for power in (0, 28, 31, 32, 39)] == [2**16, 2**16, *[2**19] * 3]
    assert plans.default_shard_bytes(2**39 + 1) == 2**19 + 1
    assert all(size // plans.default_shard_bytes(size) <= plans.MAX_SHARDS for size in (2**39 - 1, 2**45 + 1))


def test_more_shards_than_can_be_kept_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "MAX_SHARDS", 16)
    (tmp_path / "a.txt").write_bytes(b"x" * 64)
    with pytest.raises(SettingError, match=r"shard_bytes.*at least 4"):
        planned(tmp_path, shard_bytes=1)
    assert len(planned(tmp_path, shard_bytes=4).shards) == 16


def test_parquet_is_divided_into_row_groups_by_the_bytes_of_its_column(tmp_path):
    write_parquet(tmp_path / "a.parquet", ["é" * 50_000, "b" * 30_000, "", "c", None, "d"], rows=1)
    plan = planned(tmp_path, shard_bytes=2**15)
    assert [[(span.start, span.stop) for span in shard.spans] for shard in plan.shards] == [[(0, 1)], [(1, 6)]]
    assert plan.size > 130_000


def test_broken_files_are_problems_and_the_others_are_planned(tmp_path):
    good = write_parquet(tmp_path / "good.parquet", ["a", "b", "c"])
    (tmp_path / "cut.parquet").write_bytes(good.read_bytes()[:-10])
    (tmp_path / "garbage.parquet").write_bytes(b"no Parquet at all")
    (tmp_path / "empty.txt").touch()
    write_parquet(tmp_path / "other.parquet", ["a"], column="content")
    write_parquet(tmp_path / "numbers.parquet", [1, 2])
    write_parquet(tmp_path / "rowless.parquet", arrow.array([], arrow.string()))
    plan = planned(tmp_path)
    assert [span.file for shard in plan.shards for span in shard.spans] == [str(good)]
    problems = {os.path.basename(problem.file): problem.reason for problem in plan.problems}
    assert {problem.location for problem in plan.problems} == {""}
    assert "damaged or not Parquet" in problems.pop("cut.parquet")
    assert "damaged or not Parquet" in problems.pop("garbage.parquet")
    assert problems == {
        "empty.txt": "is empty",
        "other.parquet": "has no column 'text'; its columns are id, content",
        "numbers.parquet": "has int64 in its column 'text', not strings",
        "rowless.parquet": "has no rows",
    }


def test_a_problem_of_a_plan_counts_the_bytes_of_its_file(tmp_path):
    write_parquet(tmp_path / "good.parquet", ["a", "b", "c"])
    (tmp_path / "garbage.parquet").write_bytes(b"no Parquet at all")
    (tmp_path / "empty.txt").touch()
    plan = planned(tmp_path)
    assert sorted(problem.skipped_bytes for problem in plan.problems) == [0, 17]
    assert plan.total_bytes == plan.size + 17


def test_a_footer_that_cannot_be_accessed_is_retried_and_then_an_error(tmp_path, monkeypatch):
    path, attempts = write_parquet(tmp_path / "good.parquet", ["a"]), list[str]()
    opened = LocalFileSystem.open

    def fail(system, name, *arguments, **options):
        attempts.append(name)
        if len(attempts) <= failures:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(system, name, *arguments, **options)

    monkeypatch.setattr(LocalFileSystem, "open", fail)
    monkeypatch.setattr(retries, "RETRY_DELAYS", (0.0, 0.0))
    failures = 2
    assert not planned(path).problems
    attempts.clear()
    failures = 3
    with pytest.raises(SettingError, match=r"good\.parquet cannot be read: Input/output error; fix this"):
        planned(path)
    assert attempts == [str(path)] * 3


def test_a_damaged_footer_is_not_retried(tmp_path, monkeypatch):
    write_parquet(tmp_path / "good.parquet", ["a"])
    (tmp_path / "garbage.parquet").write_bytes(b"no Parquet at all")
    monkeypatch.setattr(retries, "RETRY_DELAYS", (math.inf,))
    assert len(planned(tmp_path).problems) == 1


def test_a_corpus_with_nothing_to_read_is_refused_with_the_reason(tmp_path):
    write_parquet(tmp_path / "other.parquet", ["a"], column="content")
    with pytest.raises(SettingError, match=r"other\.parquet, has no column 'text'"):
        planned(tmp_path)


def test_the_fingerprint_follows_what_decides_the_result(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    (tmp_path / "b.txt").write_bytes(b"x" * 100)
    first = planned(tmp_path)
    monkeypatch.chdir(tmp_path)
    same = [planned(tmp_path), planned("a.txt", "b.txt"), planned("."), planned(tmp_path, shard_bytes=2**16)]
    assert {plan.fingerprint for plan in same} == {first.fingerprint}
    others = [
        planned("b.txt", "a.txt"),
        planned("a.txt"),
        planned(tmp_path, max_length=None),
        planned(tmp_path, batch_tokens=1),
        planned(tmp_path, field="content"),
        planned(tmp_path, separator="--"),
        planned(tmp_path, shard_bytes=50),
        planned(tmp_path, seed=1),
        plan_shards(Settings(model="another", sources=(str(tmp_path),))),
    ]
    os.utime(tmp_path / "a.txt", (1, 1))
    others.append(planned(tmp_path))
    assert len({plan.fingerprint for plan in (first, *others)}) == 1 + len(others)


@pytest.mark.timed
def test_thousands_of_small_files_are_planned_in_seconds(tmp_path):
    for number in range(MANY):
        (tmp_path / f"{number}.txt").write_bytes(b"small")
    before = time.perf_counter()
    plan = planned(tmp_path)
    assert time.perf_counter() - before < SECONDS
    assert len(plan.shards) == 1
    assert len(plan.shards[0].spans) == MANY
