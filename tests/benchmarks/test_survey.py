"""The benchmark of surveys runs, and its paper table is arithmetic."""

import re
from pathlib import Path

import pytest
import torch

from attnscope.models import Decoder
from attnscope.models.published_configs import DECODERS
from attnscope.survey.cost import cost_per_token
from benchmarks.__main__ import run
from benchmarks.survey import ACCELERATOR, estimate_large_models

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.mark.slow
def test_the_benchmark_prints_what_a_token_costs_and_what_workers_add() -> None:
    parts, work, workers, paper = run("survey")
    assert [row[0] for row in parts.rows] == ["128", "256", "512"]
    assert all(float(row[3]) >= 0 for row in parts.rows)  # timed by itself, not as a difference
    assert parts.rows[2][-1] == "1.00"  # predicted from itself
    assert len(work.rows) == 3
    assert float(workers.rows[0][2].removesuffix("x")) > 0
    assert [row[0] for row in paper.rows][1:] == ["smollm2-1.7b", "llama-3.1-8b"]


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
    assert float(row[7]) == pytest.approx(1e9 * seconds / 3600, rel=0.05)


def test_gathering_on_paper_has_the_rate_of_the_host_and_models_fit_into_one_gpu() -> None:
    """The measured time per token is that of the linked result; an H100 has 80 GB."""
    measured = (RESULTS / "survey_2026-11-16_2.md").read_text()
    columns = re.search(r"^\| 512 \|(.*)\|$", measured, re.MULTILINE)
    assert columns is not None
    milliseconds = float(columns[1].split("|")[2])
    numbers = cost_per_token(DECODERS["smollm2-135m"], 512, 11).binned_values
    assert ACCELERATOR.binned_values == pytest.approx(1000 * numbers / milliseconds, rel=0.05)
    for row in estimate_large_models().rows:
        with torch.device("meta"):
            model = Decoder(DECODERS[row[0]])
        assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 80e9
