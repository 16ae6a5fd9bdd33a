"""Runs that are killed, at any moment and on any rank, go on and end with the same curve."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnscope.errors import CheckpointError
from attnscope.models import Decoder
from attnscope.train.loop import make_optimizer
from attnscope.train.parallel import init_ranks
from tests.train.ranks import LastingRanks
from tests.train.torchrun import (
    Forked,
    Torchrun,
    curve,
    open_checkpoints,
    small,
    train_by_command,
    train_small,
    write_text,
)

CHAR_GPT = (
    "char-gpt", "--batch-size", "4", "--sequence-length", "37", "--warmup-steps", "5", "--learning-rate", "1e-3",
    "--log-every", "1", "--evaluate-every", "0", "--sample-every", "0", "--checkpoint-every", "4",
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.mark.slow
def test_torchrun_survives_ten_kills(ranks: LastingRanks, text: Path, tmp_path: Path) -> None:
    steps, kills, seeded_generator = 60, 10, random.Random(20)
    command = (*CHAR_GPT, "--data", str(text), "--steps", str(steps))
    with Torchrun(tmp_path / "killed", *command, ranks=2, restarts=kills) as run:
        for step in sorted(seeded_generator.sample(range(1, steps - 5), kills)):
            run.reached(lambda step=step: run.step() >= step and len(run.workers()) == 2)
            workers = run.workers()
            os.kill(workers[seeded_generator.randrange(2)], signal.SIGKILL)
            run.reached(lambda gone=workers: not set(gone) & set(run.workers()))
        run.succeeded()
        assert "resuming after step" in run.printed()
    ranks.run(train_by_command, 2, *command, "--out", str(tmp_path / "whole"))
    assert list(curve(tmp_path / "killed")) == list(range(1, steps + 1))
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    parameters = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert parameters[0] == parameters[1]


def test_ctrl_c_ends_torchrun_with_a_checkpoint_and_a_hint(ranks: LastingRanks, text: Path, tmp_path: Path) -> None:
    steps = 30  # so that a signal comes in time, also on a busy machine
    command = (*CHAR_GPT, "--data", str(text), "--steps", str(steps))
    with Torchrun(tmp_path / "stopped", *command, ranks=2, restarts=3) as run:
        run.reached(lambda: run.step() >= 5)
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 1  # torchrun's own way to say that it was interrupted
        step = run.step()
        assert 5 <= step < steps
        assert f"stopped after step {step}; the same command resumes it" in run.printed()
    assert (tmp_path / "stopped" / "checkpoints" / f"step-{step:08}").exists()
    for name in ("stopped", "whole"):  # the same command on one rank
        ranks.run(train_by_command, 1, *command, "--out", str(tmp_path / name))
    found, expected = curve(tmp_path / "stopped"), curve(tmp_path / "whole")
    assert list(found) == list(range(1, steps + 1))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_ctrl_c_ends_one_process_with_a_checkpoint_and_a_hint(text: Path, tmp_path: Path) -> None:
    steps = 120
    command = (*CHAR_GPT, "--data", str(text), "--steps", str(steps))
    with Torchrun(tmp_path, *command) as run:
        run.reached(lambda: run.step() >= 10)
        run.process.send_signal(signal.SIGINT)
        assert run.ended() in (0, 130)
        step = run.step()
        assert 10 <= step < steps
        assert f"stopped after step {step}; the same command resumes it" in run.printed()
    with Torchrun(tmp_path, *command) as run:
        run.succeeded()
        assert f"resuming after step {step}\n" in run.printed()
    assert list(curve(tmp_path)) == list(range(1, steps + 1))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named_and_the_run_goes_on(
    victim: int, ranks: LastingRanks, text: Path, tmp_path: Path
) -> None:
    steps = 40
    command = (*CHAR_GPT, "--data", str(text), "--steps", str(steps))
    with Torchrun(tmp_path / "stopped", *command, "--step-timeout-seconds", "5", ranks=2, restarts=1) as run:
        run.reached(lambda: run.step() >= 6)
        workers = run.workers()
        os.kill(workers[victim], signal.SIGSTOP)
        started = time.monotonic()
        run.reached(lambda: f"rank {victim} of 2 did not answer in time" in run.printed())
        assert time.monotonic() - started < 30
        run.succeeded()  # torchrun kills the stopped rank, and starts both anew
    ranks.run(train_by_command, 2, *command, "--out", str(tmp_path / "whole"))
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")


def contents(folder: Path) -> set[str]:
    """The names of files in the checkpoint that is being written."""
    for half in folder.glob("step-*.unfinished"):
        try:
            return {path.name for path in half.iterdir()}
        except FileNotFoundError:
            break
    return set()


MOMENTS: dict[str, Callable[[set[str]], bool]] = {
    "begun": lambda names: bool(names),
    "the first share": lambda names: any(name.endswith(".distcp") for name in names),
    "all shares": lambda names: len(names) >= 3,
    "what is in them": lambda names: any("metadata" in name for name in names),
    "checksums": lambda names: any("checkpoint.json" in name for name in names),
    "renamed": lambda names: not names,
}


def state(folder: Path, text: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """Step, weights and momenta of the newest checkpoint, read as a run would read them."""
    recipe = small("rotary", text)
    with init_ranks(recipe.settings) as ranks:
        model = recipe.model(recipe.data(folder, recipe.settings), recipe.settings)
        assert isinstance(model, Decoder)
        optimizer = make_optimizer(model, recipe.settings)
        step = open_checkpoints(folder, ranks).load(model, optimizer)
        found = dict(model.state_dict())
        for name, parameter in model.named_parameters():
            found |= {f"{name}.{kind}": momentum for kind, momentum in optimizer.state[parameter].items()}
        return step, found


def assert_half_is_refused(killed: Path, other: Path, text: Path) -> None:
    """What was being written could not have been read: without its other name, the run would be lost."""
    for half in killed.glob("checkpoints/step-*.unfinished"):
        if not (half / "checkpoint.json").exists():
            shutil.copytree(half, other / "checkpoints" / half.name.removesuffix(".unfinished"))
            with pytest.raises(CheckpointError):
                state(other, text)


@pytest.mark.parametrize(
    ("world_size", "seed", "kills"),
    [(2, 2, 3), pytest.param(1, 1, 8, marks=pytest.mark.slow), pytest.param(2, 2, 5, marks=pytest.mark.slow)],
)
def test_a_kill_while_a_checkpoint_is_written_leaves_whole_ones_only(
    world_size: int, seed: int, kills: int, ranks: LastingRanks, text: Path, tmp_path: Path
) -> None:
    seeded_generator, settings = random.Random(seed), {"steps": 9 * kills, "checkpoint_every": 1}
    killed, complete = tmp_path / "killed", tmp_path / "whole"
    ranks.run(train_small, world_size, "rotary", text, complete, settings)
    hit, before = list[str](), 0
    for number in range(kills):
        moment = list(MOMENTS)[number % len(MOMENTS)]
        after = before + seeded_generator.randint(1, 4)  # so many whole checkpoints have to be there first

        def is_time(moment: str = moment, after: int = after) -> bool:
            there = (killed / "checkpoints" / f"step-{after:08}").exists()
            return there and MOMENTS[moment](contents(killed / "checkpoints"))

        victims = (
            None if world_size == 1 or seeded_generator.random() < 0.3 else [seeded_generator.randrange(world_size)]
        )
        run = Forked(world_size, "rotary", text, killed, **settings)
        run.killed_when(is_time, victims)
        hit.append(f"{moment}, {victims}: {sorted(contents(killed / 'checkpoints'))}")
        assert_half_is_refused(killed, tmp_path / f"half-{number}", text)
        before, found = state(killed, text)
        assert before >= after
        shutil.copytree(
            complete / "checkpoints" / f"step-{before:08}", tmp_path / f"{number}/checkpoints/step-{before:08}"
        )
        shutil.copy(complete / "run.json", tmp_path / str(number))
        step, expected = state(tmp_path / str(number), text)
        assert step == before
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), (hit, name)
    ranks.run(train_small, world_size, "rotary", text, killed, settings)
    assert sum("[]" not in where for where in hit) >= kills // 2, hit  # the rest were renamed in time
    assert curve(killed) == curve(complete)
