"""What generating must cost, at a reduced size: `scripts/measure generate` runs the full one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnscope.bench import Size
from attnscope.bench.record import transformers_model
from attnscope.models import Decoder, load, save
from attnscope.models.published_configs import DECODERS
from benchmarks.generate import calls_by_library, read_bandwidth, tables
from tests.bench.processor import needs_bfloat16
from tests.bench.test_attention import kept


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of SmolLM2's size: what they are does not change what they cost."""
    place = tmp_path_factory.mktemp("smollm2")
    save(Decoder(DECODERS["smollm2-135m"]), place)
    return place


@pytest.mark.timed
@needs_bfloat16
@pytest.mark.parametrize("batch", [1, 8])
def test_a_step_in_bfloat16_costs_less_than_in_transformers(folder: Path, batch: int) -> None:
    # In float32 both wait for the same memory, and which of them is faster changes from run to run.
    ours, dtype = load(folder, dtype=torch.bfloat16), torch.bfloat16
    assert isinstance(ours, Decoder)
    tokens = torch.randint(ours.config.vocab_size, (batch, 16))
    # Short turns, so that some of them are undisturbed.
    calls = calls_by_library(ours, transformers_model(folder, dtype), tokens, count=8)
    assert kept(calls, lambda best: best["attnscope"] < best["transformers"], rounds=2)


@pytest.mark.timed
@pytest.mark.alone
def test_reading_memory_has_a_sensible_speed() -> None:
    assert 1e9 < read_bandwidth() < 1e12


def test_contestants_write_the_same_tokens(tmp_path: Path) -> None:
    save(Decoder(replace(DECODERS["smollm2-135m"], num_layers=2, vocab_size=1000)), tmp_path)
    ours = load(tmp_path, dtype=torch.float64)
    assert isinstance(ours, Decoder)
    tokens = torch.randint(ours.config.vocab_size, (2, 5))
    calls = calls_by_library(ours, transformers_model(tmp_path, torch.float64), tokens, count=6)
    theirs, mine = calls["transformers"](), calls["attnscope"]()
    assert isinstance(theirs, torch.Tensor)
    assert isinstance(mine, list)
    assert theirs[:, 5:].T.tolist() == mine


@pytest.mark.slow
@pytest.mark.alone
def test_the_small_benchmark_has_a_row_for_each_dtype() -> None:
    said: list[str] = []
    prompts, steps = tables(Size.SMALL, said.append)
    assert [row[0] for row in prompts.rows] == [row[0] for row in steps.rows] == ["float32", "bfloat16"]
    assert any("bfloat16" in what for what in said)
