"""A lab keeps what is written on it, in order, and refuses what would be lost or mistaken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.errors import SettingError
from attnscope.figures import lines
from attnscope.labs import NAMES, Lab, Measurement, Verdict, run
from attnscope.labs.catalogue import heading, load_experiment
from attnscope.labs.lab import SMOLLM2
from attnscope.models import Decoder, DecoderConfig, save, train_bpe
from attnscope.models.fingerprint import fingerprint_model

NUMBER = Measurement(name="share", value=0.5, low=0.4)


def drawing() -> Any:
    return lines([1, 2], {"a": [1, 2]}, xlabel="x", ylabel="y")


def lab(**options: Any) -> Lab:
    return Lab("trial", "Does it work?", **options)


def test_findings_stay_in_their_order_and_can_be_asked_for_by_kind() -> None:
    trial = lab(seed=3)
    trial.table("first", ("a", "b"), [(1, 2.0)], note="a note")
    trial.decide("1a", Verdict.HOLDS, "it does", NUMBER)
    trial.figure("second", drawing(), "a caption")
    trial.table("third", ("a",), [])
    result = trial.result
    assert (result.name, result.title, result.size, result.seed) == ("trial", "Does it work?", "small", 3)
    assert [table.title for table in result.tables] == ["first", "third"]
    assert [figure.name for figure in result.figures] == ["second"]
    assert [decision.claim for decision in result.decisions] == ["1a"]
    assert result.findings == [result.tables[0], result.decisions[0], result.figures[0], result.tables[1]]


def test_news_are_told_once() -> None:
    trial = lab()
    trial.table("first", ("a",), [(1,)])
    assert [table.title for table in trial.new_findings().tables] == ["first"]
    assert trial.new_findings().findings == []
    trial.table("second", ("a",), [(1,)])
    assert [table.title for table in trial.new_findings().tables] == ["second"]
    assert len(trial.result.tables) == 2


def test_the_size_chooses() -> None:
    assert lab().choose(small=1, full=2) == 1
    assert lab(size="full").choose(small=1, full=2) == 2


def test_numbers_of_torch_and_numpy_become_numbers() -> None:
    trial = lab()
    trial.table("t", ("a", "b", "c", "d"), [(torch.tensor(0.5), np.float32(0.25), np.int64(3), "text")])
    (row,) = trial.result.tables[0].rows
    assert row == (0.5, 0.25, 3, "text")
    assert [type(cell) for cell in row] == [float, float, int, str]


def test_what_is_wrong_is_refused() -> None:
    trial = lab()
    trial.decide("1a", Verdict.HOLDS, "it does", NUMBER)
    trial.figure("taken", drawing(), "")
    for wrong, message in (
        (lambda: trial.table("t", ("a", "b"), [(1, 2), (1,)]), "'t': expected 2 cells in each row, got 1"),
        (lambda: trial.decide("1a", Verdict.HOLDS, "", NUMBER), "claim 1a"),
        (lambda: trial.decide("99", Verdict.HOLDS, "", NUMBER), "claim '99'"),
        (lambda: trial.figure("taken", drawing(), ""), "'taken'"),
        (lambda: trial.figure("../out", drawing(), ""), "'../out'"),
        (lambda: lab(size="medium"), "got 'medium'"),
        (lambda: run("nothing"), "unknown lab 'nothing' \\(expected scaling, training_without_scaling"),
    ):
        with pytest.raises(SettingError, match=message):
            wrong()
    assert len(trial.result.findings) == 2


def test_a_run_says_what_it_is_at_and_hands_on_its_seed() -> None:
    steps: list[str] = []
    result = run("worked_examples", seed=5, step=steps.append)
    assert result.seed == 5
    parts = [heading(part.__name__).lower() for part in load_experiment("worked_examples").PARTS]
    told = [f"part {number} of {len(parts)}, {part}" for number, part in enumerate(parts, 1)]
    assert [step for step in steps if step in told] == told


def test_a_model_that_is_named_is_the_one_that_is_loaded() -> None:
    steps: list[str] = []
    with pytest.raises(Exception, match="nowhere/at/all"):
        lab(model="nowhere/at/all", step=steps.append).trained_model()
    assert steps == ["loading nowhere/at/all"]


def test_the_fingerprint_of_the_trained_model_is_in_the_result(tmp_path: Path) -> None:
    config = DecoderConfig(
        vocab_size=300, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    )
    save(Decoder(config), tmp_path / "tiny")
    train_bpe(["some text"], 260).save(tmp_path / "tiny")
    found = lab(model=str(tmp_path / "tiny"))
    model, _ = found.trained_model()
    found.trained_model()
    assert found.result.models == [fingerprint_model(model, "tiny") | {"description": "tiny", "dtype": "float32"}]
    assert found.result.findings_from(0).to_json()["models"] == found.result.models


def test_the_trained_model_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[Path] = []

    def load(source: Path, **_: Any) -> tuple[torch.nn.Module, None]:
        sources.append(source)
        return torch.nn.Linear(1, 1), None

    steps: list[str] = []
    trial = lab(step=steps.append)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models" / SMOLLM2).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr("attnscope.recording.load", load)
    monkeypatch.setattr("attnscope.labs.lab.CHECKOUT_MODELS", tmp_path / "models")
    trial.trained_model()
    monkeypatch.setattr("attnscope.labs.lab.CHECKOUT_MODELS", tmp_path / "none")
    monkeypatch.setattr("attnscope.labs.lab.find_download", lambda _: None)
    monkeypatch.setattr("attnscope.labs.lab.download", lambda name: tmp_path / f"{name}.gguf")
    trial.trained_model()
    assert sources == [tmp_path / "models" / SMOLLM2, tmp_path / f"{SMOLLM2}.gguf"]
    assert [step for step in steps if step.startswith("downloading")] == [f"downloading {SMOLLM2}, 93 MB"]


def test_names_are_told_apart() -> None:
    assert len(set(NAMES)) == len(NAMES)
