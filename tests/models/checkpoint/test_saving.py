"""Saving: shards, dtypes, and no half model whenever it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from attnscope.bench.memory import peak_extra_bytes
from attnscope.errors import CheckpointError
from attnscope.models.checkpoint import load, save, saving
from attnscope.models.decoder import Decoder, DecoderConfig
from attnscope.models.encoder import Encoder, EncoderConfig
from attnscope.models.linear import Linear
from tests.models.checkpoint.theirs import logits, opened, randomized

CONFIG = DecoderConfig(
    vocab_size=61, hidden_size=24, num_layers=2, num_heads=6, intermediate_size=40, max_position_embeddings=64
)


@pytest.fixture
def model() -> Decoder:
    return randomized(Decoder(CONFIG).double().eval())


def test_shards_hold_the_same_model_in_files_of_the_size_asked_for(model: Decoder, tmp_path: Path) -> None:
    save(model, tmp_path, max_shard_bytes=15_000)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert [path.name for path in shards] == [
        f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, 1 + len(shards))
    ]
    assert len(shards) > 3
    sizes = [[tensor.nbytes for tensor in load_file(path).values()] for path in shards]
    assert all(sum(tensors) <= 15_000 or len(tensors) == 1 for tensors in sizes)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(map(sum, sizes))
    assert torch.equal(logits(load(tmp_path)), logits(model))
    torch.testing.assert_close(logits(opened(tmp_path)), logits(model), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dtype_that_was_asked_for_is_written(dtype: torch.dtype, model: Decoder, tmp_path: Path) -> None:
    save(model, tmp_path, dtype=dtype)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    loaded = load(tmp_path)
    assert all(torch.equal(a, b.to(dtype)) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))


def test_a_dtype_that_nobody_reads_is_refused(model: Decoder, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"got torch\.int8"):
        save(model, tmp_path / "model", dtype=torch.int8)
    assert not (tmp_path / "model").exists()


def test_other_kinds_of_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Decoder.*Encoder.*Linear"):
        save(nn.Linear(2, 2), tmp_path)  # pyright: ignore[reportArgumentType]


def test_a_model_that_was_changed_by_hand_is_refused(model: Decoder, tmp_path: Path) -> None:
    model.head = Linear(24, 61, bias=False)
    with pytest.raises(CheckpointError, match=r"does not have the parameters of its config: \['head\.weight'\]"):
        save(model, tmp_path / "model")


def test_several_dtypes_are_saved_as_the_narrowest_that_holds_them_all(model: Decoder, tmp_path: Path) -> None:
    model.bfloat16().norm.double()
    save(model, tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.float64}


def test_a_model_is_overwritten_only_when_told(model: Decoder, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    save(model, tmp_path, max_shard_bytes=15_000)
    with pytest.raises(CheckpointError, match=r"already holds a model \(config\.json\).*overwrite=True"):
        save(model, tmp_path)
    other = Encoder(
        EncoderConfig(
            vocab_size=61, hidden_size=24, num_layers=1, num_heads=6, intermediate_size=40, max_position_embeddings=64
        )
    )
    save(other, tmp_path, overwrite=True)
    files = ["attnscope-checksums.json", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert isinstance(load(tmp_path), Encoder)


def test_a_file_in_the_place_of_the_folder_is_refused(model: Decoder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="is a file"):
        save(model, tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_all_files_have_the_permissions_that_the_user_asks_for(model: Decoder, mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        save(model, tmp_path, max_shard_bytes=15_000)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


def test_saving_copies_a_piece_at_a_time(tmp_path: Path) -> None:
    assert peak_extra_bytes(saving_to_bfloat16, str(tmp_path)) < 20e6  # of the 180 MB of the model in bfloat16


def saving_to_bfloat16(folder: str) -> Callable[[], object]:
    sizes = DecoderConfig(
        vocab_size=500, hidden_size=1024, num_layers=7, num_heads=8, intermediate_size=4096, max_position_embeddings=64
    )
    save(Decoder(CONFIG), Path(folder) / "small")
    return partial(save, Decoder(sizes), Path(folder) / "model", dtype=torch.bfloat16)


class PowerCutError(Exception):
    """What interrupts a save in these tests."""


@pytest.mark.parametrize("step", range(8))
def test_an_interrupted_save_leaves_the_old_model_or_none(
    step: int, model: Decoder, tmp_path: Path, monkeypatch
) -> None:
    save(model, tmp_path)
    before = logits(model)
    steps = iter(range(100))

    def failing(function):
        def call(*args, **kwargs):
            if next(steps) == step:
                raise PowerCutError
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(saving, "write_json", failing(saving.write_json))
    monkeypatch.setattr(saving.os, "replace", failing(saving.os.replace))
    monkeypatch.setattr(saving.Path, "unlink", failing(saving.Path.unlink))
    with pytest.raises(PowerCutError):
        save(randomized(Decoder(CONFIG)), tmp_path, overwrite=True)
    monkeypatch.undo()
    assert not list(tmp_path.glob(".unfinished*"))
    if (tmp_path / "config.json").exists():
        assert torch.equal(logits(load(tmp_path)), before)
    else:
        with pytest.raises(CheckpointError, match="does not exist"):
            load(tmp_path)


KILLED = """
import os, signal, sys
from attnscope.models.checkpoint import load, save
model = load(sys.argv[1])
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
save(model, sys.argv[2], overwrite=True)
"""


def test_what_a_killed_save_left_behind_is_removed_by_the_next_one(model: Decoder, tmp_path: Path) -> None:
    save(model, tmp_path / "model")
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "model", tmp_path / "copy"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "copy").glob(".unfinished-model-*/model.safetensors"))) == 1
    save(model, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "attnscope-checksums.json", "config.json", "model.safetensors",
    ]  # fmt: skip
    assert torch.equal(logits(load(tmp_path / "copy")), logits(model))


def test_a_second_save_is_refused_and_leaves_the_first_alone(
    model: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    moving = saving._move_files

    def save_again(scratch: Path, folder: Path) -> None:
        with pytest.raises(CheckpointError, match="another process is saving a model to") as error:
            save(model, tmp_path)
        refused.append(str(error.value))
        moving(scratch, folder)

    monkeypatch.setattr(saving, "_move_files", save_again)
    save(model, tmp_path)
    assert len(refused) == 1
    assert torch.equal(logits(load(tmp_path)), logits(model))
