"""The benchmark of surveys runs."""

from pathlib import Path

import pytest

from benchmarks.__main__ import run


@pytest.mark.slow
def test_the_benchmark_prints_what_a_token_costs_and_what_workers_add() -> None:
    parts, work, workers = run("survey")
    assert [row[0] for row in parts.rows] == ["128", "256", "512"]
    assert all(float(row[3]) >= 0 for row in parts.rows)  # timed by itself, not as a difference
    assert parts.rows[2][-1] == "1.00"  # predicted from itself
    assert len(work.rows) == 3
    assert float(workers.rows[0][2].removesuffix("x")) > 0


@pytest.mark.slow
@pytest.mark.alone
def test_whole_files_are_the_same_by_one_process_and_by_two_workers(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 100)
    (whole,) = run("survey", data=[str(text)], report=str(tmp_path / "report.md"))
    assert whole.rows[0][-1] == "yes"
    assert "`python -m benchmarks survey --size small --data text.txt`" in (tmp_path / "report.md").read_text()
