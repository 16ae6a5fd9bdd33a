"""Recipes: what they train, what comes out, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from attnscope.errors import CheckpointError, SettingError
from attnscope.models import CharacterTokenizer, Decoder, load, load_tokenizer
from attnscope.models.published_configs import DECODERS
from attnscope.train import RECIPES, Data, Settings, char_gpt, gpt2_small, reversal, smollm2_finetune, train
from attnscope.train.monitoring import longest_document
from attnscope.train.throughput import flops_per_token
from tests.models.smollm2 import FOLDER, transformers_model

ROOT = Path(__file__).resolve().parents[2]
SHAKESPEARE = ROOT.parent / "shared" / "data" / "tinyshakespeare.txt"
SETTINGS_BY_HAND = [
    argument
    for field in fields(Settings)
    if field.name != "betas"
    for argument in (f"--{field.name.replace('_', '-')}", "1")
    if field.name not in ("bf16", "compile") or argument != "1"
]
ONE_STEP: dict[str, Any] = {
    "steps": 1,
    "sequence_length": 16,
    "batch_size": 2,
    "evaluate_sequences": 2,
    "sample_every": 0,
}
PROSE = [ROOT / "docs" / "heads.md", ROOT / "docs" / "record.md"]


@pytest.mark.slow
@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="needs tinyshakespeare.txt, 1.1 MB of Shakespeare's plays")
def test_a_small_gpt_learns_shakespeare_and_writes_it(tmp_path: Path):
    """A tenth of the full run: `scripts/measure train --data FILE` shows what comes of all of it."""
    trained = train(
        char_gpt([SHAKESPEARE], steps=150, warmup_steps=20, evaluate_every=150, evaluate_sequences=96),
        tmp_path,
        progress=False,
    )
    assert trained.validation_loss < 2.1  # a model that knows only pairs of characters reaches 2.45
    model, tokenizer = load(tmp_path / "model"), load_tokenizer(tmp_path / "model")
    assert isinstance(model, Decoder)
    assert isinstance(tokenizer, CharacterTokenizer)
    assert tokenizer.vocab_size == 65
    ids = torch.tensor([tokenizer.encode("ROMEO:\nWhat light")])
    assert trained.model is not None
    with torch.no_grad():
        torch.testing.assert_close(model(ids), trained.model(ids))
    samples = [line["sample"] for line in metrics(tmp_path) if "sample" in line]
    words = samples[-1].split()
    known = set(SHAKESPEARE.read_text().split())
    assert sum(word in known for word in words) >= 0.5 * len(words)
    assert len(samples[-1]) > 200  # a row has 128 characters: it writes on past that
    assert sum(word in known for word in words[-10:]) >= 4
    assert sum(word in known for word in samples[0].split()) < 0.3 * len(words)  # before anything was learned


def test_a_trained_model_goes_on_learning_and_transformers_opens_it(tmp_path: Path):
    recipe = smollm2_finetune(
        PROSE, base_model=FOLDER, steps=3, batch_size=2, sequence_length=48, warmup_steps=1, learning_rate=1e-4,
        evaluate_every=3, evaluate_sequences=4, sample_every=0, checkpoint_every=0,
    )  # fmt: skip
    trained = train(recipe, tmp_path, progress=False)
    losses = [line["validation_loss"] for line in metrics(tmp_path) if "validation_loss" in line]
    assert losses[-1] < losses[0] - 0.02
    before, after = transformers_model(), AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([load_tokenizer(tmp_path / "model").encode("Every score is a mean over the queries")])
    assert trained.model is not None
    with torch.no_grad():
        torch.testing.assert_close(after(ids).logits, trained.model(ids), rtol=1e-4, atol=1e-4)
        assert (before(ids).logits - after(ids).logits).abs().max() > 0.01


def test_gpt2_small_is_the_real_size_with_a_vocabulary_of_the_text(tmp_path: Path):
    recipe = gpt2_small(PROSE)
    data = recipe.data(tmp_path, replace(recipe.settings, sequence_length=64))
    assert data.tokenizer is not None
    assert 300 < data.tokenizer.vocab_size <= DECODERS["gpt2-small"].vocab_size
    with torch.device("meta"):
        model = recipe.model(data, recipe.settings)
    assert sum(weight.numel() for weight in model.parameters()) == 124_439_808
    text = PROSE[0].read_text()
    assert data.tokenizer.decode(data.tokenizer.encode(text)) == text
    # By the usual count: 6 operations for each of the 123.6 million weights in matrices, and the products of attention.
    assert flops_per_token(model, 1024) == pytest.approx(6 * 123.53e6 + 6 * 12 * 768 * 1024, rel=1e-3)


def test_every_recipe_and_setting_is_on_the_command_line():
    from attnscope.cli import train as command
    from tests.cli.parsing import parsed

    assert tuple(RECIPES) == tuple(command.RECIPES)
    given = parsed(["train", "reversal", *SETTINGS_BY_HAND]).params
    assert {field.name for field in fields(Settings)} - {"betas"} <= given.keys()


def test_a_setting_that_is_none_is_refused():
    with pytest.raises(SettingError, match=r"'leraning_rate' is not a setting.*learning_rate"):
        reversal(leraning_rate=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "Settings.steps must be at least 1, got 0"),
        (
            {"batch_size": 6, "gradient_accumulation_steps": 4},
            "Settings.batch_size must be a multiple of gradient_accumulation_steps.*got 6",
        ),
        ({"learning_rate": 0.0}, "Settings.learning_rate must be above 0, got 0.0"),
        ({"min_lr_ratio": 1.5}, "Settings.min_lr_ratio must be .*, got 1.5"),
        ({"heads_every": -1}, "Settings.heads_every must be at least 0, got -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(SettingError, match=message):
        reversal(**changes)


def test_a_text_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(SettingError, match=r"nowhere\.txt was not found"):
        train(char_gpt([tmp_path / "nowhere.txt"]), tmp_path / "run", progress=False)


def test_a_shorter_run_warms_up_for_a_tenth_of_it():
    assert char_gpt([PROSE[0]]).settings.warmup_steps == 100
    assert char_gpt([PROSE[0]], steps=50).settings.warmup_steps == 5
    assert char_gpt([PROSE[0]], steps=50, warmup_steps=20).settings.warmup_steps == 20


def test_a_run_that_failed_at_first_leaves_the_folder_free(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("too short")
    with pytest.raises(SettingError, match=r"validation .*10%.* got 9 tokens .*--length"):
        train(char_gpt([text], steps=1), tmp_path / "run", progress=False)
    text.write_text("a rose is a rose is a rose. " * 100)
    trained = train(char_gpt([text], **ONE_STEP), tmp_path / "run", progress=False)
    assert trained.step == 1


def test_what_is_of_somebody_else_is_neither_used_nor_touched(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose. " * 100)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "mine.txt").write_text("precious")
    with pytest.raises(SettingError, match=r"has tokens, but no run\.json; choose another folder"):
        train(char_gpt([text], **ONE_STEP), tmp_path, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tokens"]
    assert (tmp_path / "tokens" / "mine.txt").read_text() == "precious"


def test_other_files_of_the_same_name_are_refused(tmp_path: Path):
    def run(content: str) -> None:
        (tmp_path / "corpus" / "text.txt").write_text(content)
        train(char_gpt([tmp_path / "corpus"], **ONE_STEP), tmp_path / "run", progress=False)

    (tmp_path / "corpus").mkdir()
    run("a rose is a rose. " * 100)
    run("a rose is a rose. " * 100)
    with pytest.raises(CheckpointError, match="contains a run with other data files; resume it with the same data"):
        run("a nose is a nose. " * 100)


def test_another_tokenizer_is_another_run():
    assert gpt2_small(PROSE).identity != gpt2_small(PROSE, tokenizer=FOLDER).identity


def test_a_text_of_one_line_is_learned_and_sampled(tmp_path: Path):
    """Samples begin with what the text has, which need not be a new line."""
    text = tmp_path / "text.txt"
    text.write_text("acgtta" * 300)
    settings: dict[str, Any] = {**ONE_STEP, "sample_every": 1, "heads_every": 1}
    train(char_gpt([text], **settings), tmp_path / "run", progress=False)
    samples = [line["sample"] for line in metrics(tmp_path / "run") if "sample" in line]
    assert len(samples) == 2
    assert set(samples[-1]) <= set("acgt")


def test_documents_are_divided_by_a_line(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose\n---\nis a rose is a rose\n---\n" * 40)
    recipe = char_gpt([text], separator="---", sequence_length=30)
    batch = recipe.data(tmp_path / "run", recipe.settings).training.get_batch([0, 1])
    assert batch.document_ids is not None
    row = longest_document(batch)
    assert row.shape[0] == 1
    assert row.shape[1] == int((batch.document_ids[0] == batch.document_ids[0].mode().values).sum()) < 30


def test_a_model_without_a_common_layout_is_trained_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose. " * 100)
    recipe = char_gpt([text], **ONE_STEP)

    def sinusoidal(data: Data, settings: Settings) -> Decoder:
        made = recipe.model(data, settings)
        assert isinstance(made, Decoder)
        return Decoder(replace(made.config, position_encoding="sinusoidal"))

    assert train(replace(recipe, model=sinusoidal), tmp_path / "run").step == 1
    assert "Hugging Face has no layout for this model: " in capsys.readouterr().err
    assert not (tmp_path / "run" / "model" / "config.json").exists()


def metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's curve."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
