"""The estimate of surveys on a GPU is arithmetic on counts and on the roofline of the kernels."""

from pathlib import Path

import pytest
import torch

from attnscope.models import Decoder
from attnscope.models.published_configs import DECODERS
from attnscope.survey.cost import cost_per_token
from benchmarks.gpu_survey import GATHERING_BYTES, LENGTH, estimate_surveys, estimate_token

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LLAMA = DECODERS["llama-3.1-8b"]


def test_the_passes_take_the_clocks_of_all_attention_weights() -> None:
    cells = cost_per_token(LLAMA, LENGTH, 11).attention_weights
    assert estimate_token(LLAMA, 0.25).passes == pytest.approx(cells * 0.25 / (132 * 1.83e9), rel=0.001)


def test_hours_are_tokens_over_speed() -> None:
    row = next(row for row in estimate_surveys(0.3).rows if row[0] == "llama-3.1-8b")
    seconds = sum(estimate_token(LLAMA, 0.3))
    assert row[5] == f"{1 / seconds:,.0f}"
    assert float(row[7]) == pytest.approx(1e9 * seconds / 3600, rel=0.05)


def test_gathering_moves_its_bytes_and_models_fit_into_one_gpu() -> None:
    """The bytes and launches are those that tests/survey/partials counts; an H100 has 80 GB."""
    numbers = cost_per_token(LLAMA, LENGTH, 11).binned_values
    assert estimate_token(LLAMA, 0.3).gathering == pytest.approx(numbers * GATHERING_BYTES / 2e12)
    for row in estimate_surveys(0.3).rows:
        with torch.device("meta"):
            model = Decoder(DECODERS[row[0]])
        assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 80e9


def test_the_table_in_the_docs_is_that_of_the_result() -> None:
    page, result = (
        {line for line in path.read_text().splitlines() if line.startswith(("| smollm2-", "| llama-"))}
        for path in (ROOT / "docs" / "scale.md", sorted(RESULTS.glob("kernels_*.md"))[-1])
    )
    assert page == result
    assert len(page) == 3
