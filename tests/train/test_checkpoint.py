"""Checkpoints: whole or not there, of the moment they were asked for, and at home on any number of ranks."""

from __future__ import annotations

import errno
import io
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.optim import Optimizer

from attnscope.errors import CheckpointError
from attnscope.models import Decoder
from attnscope.train import train
from attnscope.train.checkpoint import CheckpointManager
from attnscope.train.loop import make_optimizer
from attnscope.train.parallel import init_ranks
from tests.train.ranks import LastingRanks
from tests.train.torchrun import Forked, curve, open_checkpoints, small, train_small, write_text

TOLERANCE = 1e-5  # see test_parallel
STAGE = 3  # steps between two changes of the ranks


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A run of one rank with checkpoints after steps 5 and 10."""
    folder = tmp_path_factory.mktemp("whole")
    train(small("rotary", text, steps=10, checkpoint_every=5), folder, progress=False)
    return folder


def again(run: Path, folder: Path, text: Path, **changes: Any) -> None:
    """Go on in a copy of a run's folder, as it was before its last checkpoint."""
    shutil.copytree(run, folder, dirs_exist_ok=True)
    shutil.rmtree(folder / "checkpoints" / "step-00000010")
    train(small("rotary", text, **{"steps": 10, "checkpoint_every": 5} | changes), folder, progress=False)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@contextmanager
def opened(
    folder: Path, text: Path, kind: str = "rotary", reported: list[str] | None = None
) -> Iterator[tuple[Decoder, Optimizer, CheckpointManager]]:
    """Model, optimizer and checkpoints of a run, outside of the loop."""
    reported = [] if reported is None else reported
    recipe = small(kind, text)
    with init_ranks(recipe.settings) as ranks:
        model = recipe.model(recipe.data(folder, recipe.settings), recipe.settings)
        assert isinstance(model, Decoder)
        yield model, make_optimizer(model, recipe.settings), open_checkpoints(folder, ranks, report=reported.append)


def difference(folder: Path, other: Path) -> float:
    these, those = curve(folder), curve(other)
    assert these.keys() == those.keys()
    return max(abs(these[step] - those[step]) / those[step] for step in those)


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        (
            "rotary",
            [
                (2, {}),
                (1, {}),
                (2, {"tensor_parallel_size": 2}),
                (1, {}),
                (2, {"context_parallel_size": 2}),
                (2, {"tensor_parallel_size": 2}),
                (2, {}),
            ],
        ),
        (
            "learned",
            [
                (2, {"tensor_parallel_size": 2}),
                (4, {"tensor_parallel_size": 4}),
                (4, {"tensor_parallel_size": 2}),
                (1, {}),
            ],
        ),
    ],
)
def test_a_run_goes_on_over_other_ranks(
    kind: str, stages: list[tuple[int, dict[str, int]]], ranks: LastingRanks, text: Path, tmp_path: Path
) -> None:
    settings, folder = {"steps": STAGE * len(stages), "checkpoint_every": STAGE}, tmp_path / "moved"
    for number, (world_size, ways) in enumerate(stages, start=1):
        stop_after = number * STAGE if number < len(stages) else 0
        ranks.run(train_small, world_size, kind, text, folder, settings | ways, stop_after)
        assert checkpoints(folder)[-1] == f"step-{number * STAGE:08}"
    train(small(kind, text, **settings), tmp_path / "one", progress=False)
    assert list(curve(folder)) == list(range(1, settings["steps"] + 1))
    assert difference(folder, tmp_path / "one") < TOLERANCE


def test_a_run_goes_on_bit_by_bit(run: Path, text: Path, tmp_path: Path) -> None:
    again(run, tmp_path, text)
    assert curve(tmp_path) == curve(run)
    assert curve(tmp_path, "grad_norm") == curve(run, "grad_norm")


def test_momenta_that_are_lost_show(run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000010")
    with opened(tmp_path, text) as (model, optimizer, saved):
        assert saved.load(model, optimizer) == 5
        for state in optimizer.state.values():
            assert float(state["step"]) == 5
            state["exp_avg"].zero_()
        saved.save(model, optimizer, 5)
        saved.finish()
    train(small("rotary", text, steps=10, checkpoint_every=5), tmp_path, progress=False)
    assert curve(tmp_path)[6] == curve(run)[6]  # the weights are the same, and where they go from there is not
    assert difference(tmp_path, run) > 100 * TOLERANCE


def test_a_checkpoint_holds_the_weights_of_the_moment_it_was_asked_for(text: Path, tmp_path: Path) -> None:
    class Wide(nn.Module):
        """Large enough that writing takes a while."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2048, 2048))

    with init_ranks(small("rotary", text).settings) as ranks:
        model = Wide()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()
        weight, momentum = model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone()
        saved = CheckpointManager(tmp_path, ranks, keep=1, run_id="", report=print)
        saved.save(model, optimizer, 7)
        optimizer.step()
        optimizer.step()
        is_early = not (tmp_path / "step-00000007").exists()
        saved.finish()
        assert is_early, "it was written before the weights changed, so that nothing is shown"
        assert not torch.equal(model.weight, weight)
        assert saved.load(model, optimizer) == 7
        assert torch.equal(model.weight, weight)
        assert torch.equal(optimizer.state[model.weight]["exp_avg"], momentum)


def test_checkpoints_of_a_run_that_goes_on_are_those_of_runs_that_end(text: Path, tmp_path: Path) -> None:
    steady = {
        "warmup_steps": 0,
        "min_lr_ratio": 1.0,
        "checkpoint_every": 1,
    }  # the same rates, however many steps there are
    train(small("rotary", text, steps=8, **steady), tmp_path / "long", progress=False)
    for step in (8, 5, 2):
        ended = train(small("rotary", text, steps=step, **steady), tmp_path / f"short-{step}", progress=False).model
        assert ended is not None
        for later in range(step + 1, 9):
            shutil.rmtree(tmp_path / "long" / "checkpoints" / f"step-{later:08}", ignore_errors=True)
        with opened(tmp_path / "long", text) as (model, optimizer, saved):
            assert saved.load(model, optimizer) == step
        for name, weight in ended.state_dict().items():
            assert torch.equal(model.state_dict()[name], weight), (step, name)


def test_only_the_newest_are_kept(text: Path, tmp_path: Path) -> None:
    train(small("rotary", text, steps=9, checkpoint_every=2, keep_checkpoints=2), tmp_path, progress=False)
    assert checkpoints(tmp_path) == ["step-00000008", "step-00000009"]


def test_what_was_not_finished_is_removed_and_not_read(run: Path, text: Path, tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "step-00000099.unfinished"
    shutil.copytree(run / "checkpoints" / "step-00000010", half)
    (half / ".metadata").unlink()
    again(run, tmp_path, text)
    assert checkpoints(tmp_path) == ["step-00000005", "step-00000010"]
    assert curve(tmp_path) == curve(run)


def cut(share: float) -> Callable[[Path], object]:
    """What leaves this share of a file, and never its last two bytes."""

    def harm(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: min(int(share * len(content)), len(content) - 2)])

    return harm


def load_weights(folder: Path, text: Path, reported: list[str]) -> tuple[int, dict[str, torch.Tensor]]:
    """The step, parameters and momenta that a run would resume from."""
    with opened(folder, text, reported=reported) as (model, optimizer, saved):
        step = saved.load(model, optimizer)
        found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            found |= {f"{name}.{kind}": moment.clone() for kind, moment in optimizer.state[parameter].items()}
        return step, found


@pytest.fixture(scope="module")
def before(run: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What the run has after step 5."""
    folder = tmp_path_factory.mktemp("before") / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000010")
    step, found = load_weights(folder, text, [])
    assert step == 5
    return found


FILES = [".metadata", "__0_0.distcp", "checkpoint.json"]


@pytest.mark.parametrize(
    "harm", [Path.unlink, cut(0), cut(0.5), cut(1)], ids=["gone", "empty", "half", "cut at its end"]
)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_skipped_with_a_sentence(
    name: str,
    harm: Callable[[Path], object],
    run: Path,
    before: dict[str, torch.Tensor],
    text: Path,
    tmp_path: Path,
) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    harm(tmp_path / "checkpoints" / "step-00000010" / name)
    reported: list[str] = []
    step, found = load_weights(tmp_path, text, reported)
    assert step == 5
    assert all(torch.equal(found[name], before[name]) for name in before)
    (sentence,) = reported
    assert "step-00000010 is damaged" in sentence
    assert name in sentence
    assert sentence.endswith("loading step-00000005 instead")
    assert checkpoints(tmp_path) == ["step-00000005", "step-00000010.damaged"]
    harm(tmp_path / "checkpoints" / "step-00000005" / name)
    with pytest.raises(
        CheckpointError, match=rf"all checkpoints .* are damaged: step-00000005 \(.*{name}.*another folder"
    ):
        load_weights(tmp_path, text, reported)
    assert checkpoints(tmp_path) == ["step-00000005", "step-00000010.damaged"]


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(name: str, run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000005")
    path, dice = tmp_path / "checkpoints" / "step-00000010" / name, random.Random(name)
    content = path.read_bytes()
    with opened(tmp_path, text) as (model, optimizer, saved):
        assert saved.load(model, optimizer) == 10
        for _ in range(40):
            place = dice.randrange(8 * len(content))
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="all checkpoints"):
                saved.load(model, optimizer)
        page = dice.randrange(max(1, len(content) - 4096))
        path.write_bytes(content[:page] + bytes(4096) + content[page + 4096 :])  # a page that was not written
        with pytest.raises(CheckpointError, match="all checkpoints"):
            saved.load(model, optimizer)
        path.write_bytes(content)
        assert saved.load(model, optimizer) == 10


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    cut(0.5)(tmp_path / "checkpoints" / "step-00000010" / "__0_0.distcp")
    train(small("rotary", text, steps=10, checkpoint_every=5, keep_checkpoints=2), tmp_path, progress=False)
    assert curve(tmp_path) == curve(run)
    assert checkpoints(tmp_path) == ["step-00000005", "step-00000010", "step-00000010.damaged"]


def test_a_checkpoint_under_another_name_is_refused(run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    shutil.copytree(run / "checkpoints" / "step-00000010", tmp_path / "checkpoints" / "step-00000020")
    with (
        opened(tmp_path, text) as (model, optimizer, saved),
        pytest.raises(CheckpointError, match="step-00000020 was written as step-00000010"),
    ):
        saved.load(model, optimizer)


def test_a_checkpoint_of_another_model_is_refused(run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    with (
        opened(tmp_path, text, "learned") as (model, optimizer, saved),
        pytest.raises(CheckpointError, match="of another model"),
    ):
        saved.load(model, optimizer)


def test_a_checkpoint_of_another_run_is_refused(run: Path, text: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 10, "checkpoint_every": 5}
    train(small("rotary", text, **settings), tmp_path, progress=False)
    shutil.rmtree(tmp_path / "checkpoints")
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match="step-00000010 is of another run; remove it"):
        train(small("rotary", text, **settings), tmp_path, progress=False)


def test_two_ranks_skip_a_damaged_checkpoint_together(run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    cut(0.3)(tmp_path / "checkpoints" / "step-00000010" / "__0_0.distcp")
    both = Forked(2, "rotary", text, tmp_path, steps=10, checkpoint_every=5)
    both.succeeded()
    assert ["loading step-00000005 instead" in log.read_text(encoding="utf-8") for log in both.logs] == [True, False]
    assert difference(tmp_path, run) < TOLERANCE


@pytest.mark.parametrize("name", FILES)
def test_two_ranks_refuse_damaged_checkpoints_together(name: str, run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    for place in (tmp_path / "checkpoints").iterdir():
        cut(0.3)(place / name)
    started = time.monotonic()
    both = Forked(2, "rotary", text, tmp_path, steps=10, checkpoint_every=5)
    assert both.ended() == [1, 1]
    assert time.monotonic() - started < 60, "one rank waited for the other"
    assert all("all checkpoints" in log.read_text(encoding="utf-8") for log in both.logs)


class FullDisk(FileSystem):
    """A disk on which nothing has room after the first bytes."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            yield FullStream(stream)


class FullStream(io.BufferedIOBase):
    def __init__(self, stream: Any):
        self.stream = stream

    def write(self, content: Any) -> int:
        if self.stream.tell() + memoryview(content).nbytes > 10_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.stream.write(content)

    def tell(self) -> int:
        return self.stream.tell()

    def flush(self) -> None:
        self.stream.flush()


def test_a_full_disk_is_named(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "FileSystem", FullDisk)
    with pytest.raises(CheckpointError, match=r"could not be written .*No space left on device.* check the disk space"):
        train(small("rotary", text, steps=10, checkpoint_every=5), tmp_path, progress=False)


def test_a_checkpoint_that_cannot_be_written_is_an_error(run: Path, text: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 10, "checkpoint_every": 5}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))  # as on a full disk, writing fails half-way
    try:
        with pytest.raises(CheckpointError, match=r"could not be written .*File too large"):
            train(small("rotary", text, **settings), tmp_path, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [name for name in checkpoints(tmp_path) if not name.endswith(".unfinished")] == []
    train(small("rotary", text, **settings), tmp_path, progress=False)
    assert curve(tmp_path) == curve(run)


@pytest.mark.parametrize(
    "change", [{"steps": 20}, {"learning_rate": 1e-3}, {"seed": 3}, {"batch_size": 4}, {"max_grad_norm": 1.0}]
)
def test_another_run_in_the_same_folder_is_refused(
    change: dict[str, Any], run: Path, text: Path, tmp_path: Path
) -> None:
    (name,) = change
    with pytest.raises(CheckpointError, match=f"contains a run with {name} = .* choose another folder"):
        again(run, tmp_path, text, **change)


def test_what_changes_nothing_but_rounding_may_change(run: Path, text: Path, tmp_path: Path) -> None:
    again(run, tmp_path, text, gradient_accumulation_steps=2, checkpoint_every=3, keep_checkpoints=3, evaluate_every=4)
    assert difference(tmp_path, run) < TOLERANCE
