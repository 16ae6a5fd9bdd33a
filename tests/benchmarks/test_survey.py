"""The benchmark of surveys runs, and its paper table is arithmetic."""

from pathlib import Path

import pytest

from attnscope.models.published_configs import DECODERS
from attnscope.survey.cost import cost_per_token
from benchmarks.__main__ import run
from benchmarks.survey import ACCELERATOR, estimate_large_models


@pytest.mark.slow
def test_the_benchmark_prints_what_a_token_costs_and_what_workers_add() -> None:
    parts, work, workers, paper = run("survey")
    assert [row[0] for row in parts.rows] == ["128", "256", "512"]
    assert all(float(row[3]) >= 0 for row in parts.rows)  # timed by itself, not as a difference
    assert parts.rows[2][-1] == "1.00"  # predicted from itself
    assert len(work.rows) == 3
    assert float(workers.rows[0][2].removesuffix("x")) > 0
    assert [row[0] for row in paper.rows][1:] == ["llama-3.1-8b", "llama-3.1-70b"]


@pytest.mark.slow
@pytest.mark.alone
def test_whole_files_are_the_same_by_one_process_and_by_two_workers(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 100)
    (whole,) = run("survey", data=[str(text)], report=str(tmp_path / "report.md"))
    assert whole.rows[0][-1] == "yes"
    assert "`python -m benchmarks survey --size small --data text.txt`" in (tmp_path / "report.md").read_text()


def test_hours_on_paper_are_tokens_over_speed() -> None:
    row = next(row for row in estimate_large_models().rows if row[0] == "llama-3.1-8b")
    seconds = ACCELERATOR.seconds(cost_per_token(DECODERS["llama-3.1-8b"], 2048, 11))
    assert row[4] == f"{1 / seconds:,.0f}"
    assert float(row[6]) == pytest.approx(1e9 * seconds / 3600, rel=0.05)
