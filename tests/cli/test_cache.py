"""`attnscope cache` on a tiny model: the table, JSON, files and mistakes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from attnscope.cache import POLICIES, measure_eviction
from attnscope.cli.cache import POLICIES as NAMED
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, save
from attnscope.models.published_configs import DECODERS
from attnscope.recording import load
from tests.cli.running import assert_mistake, run_command

TEXT = "the quick brown fox jumps over the lazy dog and runs away " * 3


def tiny_llama(vocab_size: int) -> DecoderConfig:
    return replace(
        DECODERS["smollm2-135m"],
        vocab_size=vocab_size,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=48,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer of characters."""
    place = tmp_path_factory.mktemp("cache")
    tokenizer = CharacterTokenizer("\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    torch.manual_seed(0)
    save(Decoder(tiny_llama(tokenizer.vocab_size)), place / "model")
    tokenizer.save(place / "model")
    return place


def test_the_names_of_policies_are_those_of_the_library() -> None:
    assert tuple(POLICIES) == NAMED


def test_a_row_for_each_policy_and_budget(folder: Path) -> None:
    found = run_command(
        "cache", folder / "model", TEXT, "--keep", "0.5,0.1", "--by", "received,recent", "--continuation", "9"
    )
    assert found.code == 0, found.errors
    header, base, *rows = (line.split("\t") for line in found.output.splitlines())
    assert header == ["policy", "kept", "pairs", "loss", "change", "KL", "lost weight"]
    assert base[0] == "all pairs"
    assert [row[0] for row in rows] == ["received", "received", "recent", "recent"]


def test_json_has_the_numbers_of_the_library(folder: Path) -> None:
    options = ("--keep", "0.25", "--by", "norm", "--continuation", "30", "--per", "layer", "--json")
    found = run_command("cache", folder / "model", TEXT, *options)
    assert found.code == 0, found.errors
    (result,) = (told := json.loads(found.output))["results"]
    model, tokenizer = load(folder / "model")
    expected = measure_eviction(
        model, TEXT, tokenizer, keep=(0.25,), by=("norm",), per="layer", continuation=30, progress=False
    )
    assert told["loss"] == pytest.approx(expected.loss)
    assert result["loss"] == pytest.approx(expected.results[0].loss)
    assert result["kl"] == pytest.approx(float(expected.results[0].kl.mean()))
    assert result["pairs"] == expected.results[0].kept.num_pairs == (told["context"] // 4) * 2 * 2


def test_files_have_lost_weights_and_budgets(folder: Path) -> None:
    options = ("--keep", "0.5,0.25", "--by", "received", "--csv", "-", "--budgets", folder / "budgets.parquet")
    found = run_command("cache", folder / "model", TEXT, "--continuation", "20", *options)
    assert found.code == 0, found.errors
    rows = list(csv.DictReader(io.StringIO(found.output)))
    assert len(rows) == 8
    assert list(rows[0]) == ["layer", "head", "received_0.5", "received_0.25"]
    assert all(0 < float(row["received_0.5"]) < float(row["received_0.25"]) < 1 for row in rows)
    budgets = pyarrow.parquet.read_table(folder / "budgets.parquet").to_pydict()
    assert list(budgets) == ["layer", "head", "received"]
    assert len(budgets["head"]) == 4
    assert all(0 < pairs <= 154 for pairs in budgets["received"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--keep", "half"), "expected numbers such as"),
        (("--keep", "0"), "above 0 and at most 1"),
        (("--by", "recieved"), "did you mean 'received'?"),
        (("--continuation", "500"), "more than 500 tokens, got 174"),
        (("--continuation", "1"), "must be at least 2"),
        (("--tokens", "1"), "--tokens must be at least 2"),
        (("--json", "--csv", "-"), "leave out one"),
        (("--budgets", "nowhere/budgets.parquet"), "does not exist"),
    ],
)
def test_mistakes_are_one_line(folder: Path, options: tuple[str, ...], message: str) -> None:
    assert_mistake(run_command("cache", folder / "model", TEXT, *options), message)
