"""`attnscope heads --find retrieval` on a tiny model: tables, JSON, files and mistakes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from attnscope.heads import find_retrieval_heads
from attnscope.labs import reference_text
from attnscope.models import CharacterTokenizer, Decoder, save
from attnscope.recording import load
from tests.cli.running import assert_mistake, run_command
from tests.cli.test_cache import tiny_llama

OPTIONS = ("--length", "512", "--needles", "4", "--depths", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer of characters."""
    folder = tmp_path_factory.mktemp("retrieval") / "model"
    tokenizer = CharacterTokenizer.from_text(
        reference_text() + "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )
    save(Decoder(tiny_llama(tokenizer.vocab_size)), folder)
    tokenizer.save(folder)
    return folder


def test_tables_and_files(model: Path, tmp_path: Path) -> None:
    saved, pictures = tmp_path / "full_attention_heads.tsv", tmp_path / "pictures"
    found = run_command(
        "heads",
        model,
        "--find",
        "retrieval",
        *OPTIONS,
        "--save",
        saved,
        "--pictures",
        pictures,
        "--csv",
        tmp_path / "heads.csv",
    )
    assert found.code == 0, found.errors
    assert "answers that the model predicts: 0 of 4 at 512 tokens" in found.output
    for words in ("depth in the text", "0-50%", "tokens back", "loss with all heads", "mean of 10 draws"):
        assert words in found.output
    scores = np.loadtxt(saved, dtype=float, delimiter="\t")  # as DuoAttention and kvpress read it
    assert scores.shape == (2, 2)
    assert sorted(path.name for path in pictures.iterdir()) == ["retrieval.png", "streaming.png"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "heads.csv").read_text())))
    assert len(rows) == 8
    best = np.array([float(row["retrieval"]) for row in rows]).reshape(2, 2, 2).max(-1)
    np.testing.assert_allclose(scores, best, atol=1e-6)


def test_json_has_the_numbers_of_the_library(model: Path) -> None:
    found = run_command("heads", model, "--find", "streaming", *OPTIONS, "--json")
    assert found.code == 0, found.errors
    told = json.loads(found.output)
    expected = find_retrieval_heads(
        *load(model)[:1], reference_text(), load(model)[1], length=512, needles=4, progress=False
    )
    order = expected.table().top("streaming")
    assert [(head["layer"], head["head"]) for head in told["heads"]] == list(
        zip(order.layers, order.heads, strict=True)
    )
    assert told["heads"][0]["scores"]["streaming"] == pytest.approx(float(order["streaming"][0]))
    assert told["by_depth"]["needles"] == [2, 2]
    assert set(told["by_distance"]["means"]) == set(order.head_names)
    assert len(told["find"]["ablation"]["change_of_others"]) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--find", "induction", "--length", "512"), "--length needs --find retrieval"),
        (("--save", "x.tsv"), "--save needs --find retrieval"),
        (("--find", "retrieval", "--length", "0"), "--length must be at least 1"),
        (("--find", "retrieval", "--needles", "4", "--depths", "3"), "two needles per depth"),
        (("--find", "retrieval", "--by", "sink"), "leave out --by"),
        (("--find", "retrieval", "--save", "nowhere/x.tsv"), "does not exist"),
    ],
)
def test_mistakes_are_one_line(model: Path, options: tuple[str, ...], message: str) -> None:
    assert_mistake(run_command("heads", model, *options), message)


def test_a_short_text_is_refused(model: Path) -> None:
    result = run_command("heads", model, "a short text", "--find", "retrieval", *OPTIONS)
    assert result.code == 2
    assert "expected a text of at least" in result.errors
