"""A saved model that was damaged is not loaded, by either library; folders of others have no checksums."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope.checksums import crc32_file
from attnscope.errors import CheckpointError
from attnscope.models import CharacterTokenizer, load_tokenizer, train_bpe
from attnscope.models.checkpoint import load, save
from attnscope.models.checkpoint.folder_checksums import FILE, read_checksums
from attnscope.models.checkpoint.source import NEEDED
from attnscope.models.decoder import Decoder, DecoderConfig
from attnscope.recording import load as load_any
from tests.models.checkpoint.theirs import logits, opened

CONFIG = DecoderConfig(
    vocab_size=61, hidden_size=24, num_layers=2, num_heads=6, intermediate_size=40, max_position_embeddings=64
)
LOADERS: dict[str, Callable[[Path], object]] = {
    "models.load": load,
    "attnscope.load": load_any,
    "transformers": lambda folder: load_any(folder, using="transformers"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(Decoder(CONFIG), tmp_path / "model", max_shard_bytes=20_000)
    return tmp_path / "model"


def change_checksums(folder: Path, **fields: object) -> None:
    found = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(found | fields))


def test_every_file_of_a_saved_model_has_its_checksum(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()} - {FILE}
    assert len(names) == 5
    assert read_checksums(folder) == {name: crc32_file(folder / name) for name in names}


def test_transformers_opens_a_folder_with_checksums(tmp_path: Path) -> None:
    save(Decoder(CONFIG).double(), tmp_path)
    torch.testing.assert_close(logits(opened(tmp_path)), logits(load(tmp_path)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_flipped_bit_in_any_file_is_found(loader: str, folder: Path) -> None:
    generator = random.Random(0)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for place in {0, len(content) - 1, *(generator.randrange(len(content)) for _ in range(8))}:
            changed = bytearray(content)
            changed[place] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(CheckpointError, match=None if path.name == FILE else f"{path.name} is not the file"):
                LOADERS[loader](folder)
        path.write_bytes(content)
    LOADERS[loader](folder)


def test_a_page_of_zeros_is_found(tmp_path: Path) -> None:
    save(Decoder(CONFIG), tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:8192] + bytes(4096) + content[12288:])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not the file that was saved"):
        load(tmp_path)


def test_a_shard_of_another_model_is_found(folder: Path) -> None:
    shard = folder / "model-00002-of-00003.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(shard).items()}, shard, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{shard.name} is not the file that was saved"):
        load(folder)


def test_without_the_file_of_checksums_everything_loads(folder: Path) -> None:
    (folder / FILE).unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    load(folder)


def test_a_model_that_is_saved_again_has_new_checksums(folder: Path) -> None:
    before = read_checksums(folder)
    save(Decoder(CONFIG), folder, overwrite=True)
    assert read_checksums(folder).keys() == {"config.json", "model.safetensors"}
    assert read_checksums(folder)["model.safetensors"] not in before.values()
    load(folder)


TEXT = "a rose is a rose"
TOKENIZERS = {"characters": CharacterTokenizer.from_text(TEXT), "bpe": train_bpe([TEXT], 262)}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_flipped_bit_in_any_file_of_a_tokenizer_is_found(kind: str, folder: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    TOKENIZERS[kind].save(folder)
    names = {path.name for path in folder.iterdir()} - before
    assert names
    assert names | before == read_checksums(folder).keys() | {FILE}
    for name in names:
        content = (folder / name).read_bytes()
        for place in range(0, len(content), max(1, len(content) // 50)):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            (folder / name).write_bytes(changed)
            with pytest.raises(CheckpointError, match=f"{name} is not the file that was saved"):
                load_tokenizer(folder)
        (folder / name).write_bytes(content)
    assert load_tokenizer(folder).encode("rose") == TOKENIZERS[kind].encode("rose")
    load(folder)


def test_a_model_that_is_saved_again_keeps_the_checksums_of_its_tokenizer(folder: Path) -> None:
    TOKENIZERS["characters"].save(folder)
    save(Decoder(CONFIG), folder, overwrite=True)
    assert read_checksums(folder).keys() == {"config.json", "model.safetensors", "characters.json"}
    (folder / "characters.json").write_text('{"characters": "eros"}')
    with pytest.raises(CheckpointError, match=r"characters\.json is not the file that was saved"):
        load_tokenizer(folder)
    TOKENIZERS["characters"].save(folder)
    assert load_tokenizer(folder) == TOKENIZERS["characters"]


def test_a_folder_with_files_of_two_tokenizers_is_refused_until_one_is_saved(folder: Path) -> None:
    other = train_bpe(["the light of a garden"], 264)
    other.save(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    TOKENIZERS["bpe"].save(folder)
    (folder / "tokenizer.json").write_bytes(files["tokenizer.json"])  # as after a kill before the last file
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not the file that was saved"):
        load_tokenizer(folder)
    TOKENIZERS["bpe"].save(folder)
    assert load_tokenizer(folder).encode("rose") == TOKENIZERS["bpe"].encode("rose")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_file_with_a_checksum_is_fetched_from_the_hub(kind: str, folder: Path) -> None:
    TOKENIZERS[kind].save(folder)
    for name in (FILE, *read_checksums(folder)):
        assert any(fnmatch(name, pattern) for pattern in NEEDED), name


def test_a_model_can_be_saved_next_to_a_tokenizer(tmp_path: Path) -> None:
    TOKENIZERS["bpe"].save(tmp_path)
    save(Decoder(CONFIG), tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= read_checksums(tmp_path).keys()
    load(tmp_path)


def test_a_model_is_saved_over_one_whose_checksums_are_damaged(folder: Path) -> None:
    (folder / FILE).write_text("{")
    save(Decoder(CONFIG), folder, overwrite=True)
    load(folder)


def test_a_tokenizer_of_others_next_to_the_model_is_free(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": 2}, "version: expected an integer from 1 to 1"),
        ({"crc32": []}, "crc32: expected an object"),
        ({"crc32": {"../config.json": "0"}}, "expected the names of files in the same folder"),
        ({"crc32": {"a/../config.json": "0"}}, "expected the names of files in the same folder"),
        ({"crc32": {"config.json": 3}}, "config.json: expected a string"),
        ({"crc32": {"missing.json": "0"}}, r"missing\.json is not the file that was saved"),
        ({"more": 1}, "unknown fields: more"),
    ],
)
def test_checksums_that_are_not_understood_are_refused(fields: dict[str, Any], message: str, folder: Path) -> None:
    change_checksums(folder, **fields)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_a_folder_may_be_copied(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    load(tmp_path / "copy")


def test_what_stops_a_load_does_not_wait_for_checksums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[bool] = []
    monkeypatch.setattr("threading.Thread.join", lambda *_: waiting.append(True))

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(folder, progress=stop)
    assert not waiting
