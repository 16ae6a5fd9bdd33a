"""The loop on one rank: what it refuses, what it leaves behind, and what must not change what is learned."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from attnscope.errors import CheckpointError, SettingError
from attnscope.models import Decoder, load, load_tokenizer
from attnscope.train import induction, train
from attnscope.train.settings import learning_rate
from tests.train.torchrun import Forked, call_before_steps, curve, small, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """Twelve steps that nothing interrupts, and that nobody looks at."""
    folder = tmp_path_factory.mktemp("plain")
    train(small("rotary", text, steps=12), folder, progress=False)
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_goes_on_bit_by_bit(
    number: signal.Signals, plain: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small("rotary", text, steps=12, log_every=2)
    before = signal.getsignal(number), sys.excepthook
    interrupting = call_before_steps(recipe, lambda step: os.kill(os.getpid(), number) if step == 6 else None)
    stopped = train(interrupting, tmp_path)
    assert stopped.step == 7  # the step at hand is finished, though it is not one that is logged
    assert "stopped after step 7; the same command resumes it" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]
    assert (signal.getsignal(number), sys.excepthook) == before
    assert train(recipe, tmp_path, progress=False).step == 12
    expected = curve(plain)
    assert curve(tmp_path) == {step: expected[step] for step in (2, 4, 6, 8, 10, 12)}
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (tmp_path, plain)]
    assert weights[0] == weights[1]


def test_looking_does_not_change_what_is_learned(plain: Path, text: Path, tmp_path: Path) -> None:
    looking = {"evaluate_every": 1, "heads_every": 3, "sample_every": 2, "checkpoint_every": 1}
    train(small("rotary", text, steps=12, **looking), tmp_path, progress=False)
    assert curve(tmp_path) == curve(plain)
    assert curve(tmp_path, "grad_norm") == curve(plain, "grad_norm")
    assert list(curve(tmp_path, "validation_loss")) == list(range(13))
    assert list(curve(tmp_path, "sample")) == [0, 2, 4, 6, 8, 10, 12]
    steps = sorted(path.name for path in (tmp_path / "heads").iterdir())
    assert steps == [f"step-{step:08}.csv" for step in (0, 3, 6, 9, 12)]


@pytest.mark.parametrize("kind", ["rotary", "learned"])
def test_dropout_is_the_same_when_a_run_goes_on(kind: str, text: Path, tmp_path: Path) -> None:
    plain = small(kind, text, steps=6, checkpoint_every=3)

    def model(data: Any, settings: Any) -> Decoder:
        made = plain.model(data, settings)
        assert isinstance(made, Decoder)
        return Decoder(replace(made.config, dropout=0.2))

    recipe = replace(plain, model=model)
    train(recipe, tmp_path / "whole", progress=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-00000006")
    train(recipe, tmp_path / "again", progress=False)
    assert curve(tmp_path / "again") == curve(tmp_path / "whole")
    train(plain, tmp_path / "without", progress=False)
    assert curve(tmp_path / "without")[1] != curve(tmp_path / "whole")[1]


@pytest.mark.parametrize("rows", [16, 11])
def test_an_evaluation_is_the_same_in_however_many_parts(rows: int, text: Path, tmp_path: Path) -> None:
    found = []
    for accumulate in (1, 2, 4):
        recipe = small(
            "rotary", text, steps=1, evaluate_every=1, evaluate_sequences=rows, gradient_accumulation_steps=accumulate
        )
        found.append(train(recipe, tmp_path / f"{accumulate}", progress=False).validation_loss)
    assert found == pytest.approx([found[0]] * 3, rel=1e-6)


def test_learning_rates_rise_and_fall_as_they_are_set(plain: Path, text: Path) -> None:
    settings = small("rotary", text, steps=12).settings
    rates = curve(plain, "learning_rate")
    assert rates == {step: learning_rate(settings, step - 1) for step in range(1, 13)}
    assert [rates[step] for step in (1, 5)] == pytest.approx([3e-3 / 5, 3e-3])
    assert all(rates[step] > rates[step + 1] for step in range(6, 12))
    assert 3e-4 < rates[12] < 5e-4


def test_the_model_that_is_left_behind_loads_and_answers_the_same(text: Path, tmp_path: Path) -> None:
    for kind in ("rotary", "learned"):
        trained = train(small(kind, text, steps=2), tmp_path / kind, progress=False).model
        assert isinstance(trained, Decoder)
        assert not trained.training
        place = tmp_path / kind / "model"
        tokens = torch.tensor([load_tokenizer(place).encode("a rose is a rose")])
        with torch.no_grad():
            assert torch.equal(load(place)(tokens), trained(tokens))


def test_a_gradient_that_is_no_number_ends_the_run_before_it_spoils_the_weights(text: Path, tmp_path: Path) -> None:
    weights = dict[str, torch.nn.Module]()
    recipe = small("rotary", text, steps=12, checkpoint_every=1)

    def model(data: Any, settings: Any) -> torch.nn.Module:
        weights["model"] = recipe.model(data, settings)
        return weights["model"]

    def spoil(step: int) -> None:
        if step == 4:
            with torch.no_grad():
                next(weights["model"].parameters()).fill_(float("nan"))

    with pytest.raises(SettingError, match=r"gradient norm at step 5, got nan; .* lower learning rate"):
        train(call_before_steps(replace(recipe, model=model), spoil), tmp_path, progress=False)
    assert list(curve(tmp_path)) == [1, 2, 3, 4]
    whole = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert whole == [f"step-{step:08}" for step in (1, 2, 3, 4)]  # also the one that was being written


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(SettingError, match=r"'warmup' is not a setting.*warmup_steps"):
        induction(warmup=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 6, "gradient_accumulation_steps": 4}, "multiple of gradient_accumulation_steps"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"learning_rate": float("nan")}, "above 0"),
        ({"min_lr_ratio": 1.5}, "between 0 and 1"),
        ({"checkpoint_every": -1}, "at least 0"),
        ({"keep_checkpoints": 0}, "at least 1"),
    ],
)
def test_settings_outside_of_what_they_may_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        induction(**change)


def test_ranks_that_are_not_there_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"tensor_parallel_size x context_parallel_size = 2 x 1, got 1; .* torchrun"):
        train(small("rotary", text, tensor_parallel_size=2), tmp_path, progress=False)


@pytest.mark.parametrize(
    ("ranks", "change", "message"),
    [
        (2, {"batch_size": 7}, "got 7 sequences over 2 ranks"),
        (4, {"tensor_parallel_size": 4}, "num_kv_heads is 2, which does not divide over 4 ranks"),
    ],
)
def test_work_that_does_not_divide_is_refused_by_all_ranks(
    ranks: int, change: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    run = Forked(ranks, "rotary", text, tmp_path, **change)
    assert run.ended() == [1] * ranks
    assert all(message in log.read_text(encoding="utf-8") for log in run.logs)


def test_a_process_group_that_exists_is_left_alone(text: Path, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=(tmp_path / "meeting").as_uri(), rank=0, world_size=1)
    try:
        with pytest.raises(SettingError, match="belongs to a process group already"):
            train(small("rotary", text), tmp_path, progress=False)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_another_recipe_in_the_folder_is_refused(plain: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match="contains a run with recipe = rotary, not learned"):
        train(small("learned", text, steps=12), tmp_path, progress=False)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:.*should not be instantiated")  # dynamo's
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_run_learns_the_same(
    backend: str, plain: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of packed documents, whose masks stay outside of the compiled code; heads are watched in the plain model.

    aot_eager traces forward and backward as inductor does, and leaves out the minute in which inductor compiles.
    """
    torch.compiler.reset()
    compiled = list[object]()

    def compile_model(model: torch.nn.Module) -> object:
        compiled.append(model)
        return compile_with(model, backend=backend)

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", compile_model)
    train(small("rotary", text, steps=3, warmup_steps=5, compile=True, heads_every=3), tmp_path, progress=False)
    expected = curve(plain)
    assert curve(tmp_path)[1] == pytest.approx(expected[1], rel=1e-5)
    assert (tmp_path / "heads" / "step-00000003.csv").exists()
    assert len(compiled) == 1
