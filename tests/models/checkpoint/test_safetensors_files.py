"""Folders that are damaged or hostile are refused with a reason, quickly and without much memory."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope.bench.memory import peak_extra_bytes
from attnscope.errors import CheckpointError
from attnscope.models.checkpoint import load
from attnscope.models.checkpoint import save as save_with_checksums
from attnscope.models.checkpoint.folder_checksums import FILE as CHECKSUMS
from attnscope.models.checkpoint.safetensors_files import open_file, open_weights
from attnscope.models.decoder import Decoder, DecoderConfig
from tests.models.checkpoint.theirs import loaded

CONFIG = DecoderConfig(
    vocab_size=61, hidden_size=24, num_layers=2, num_heads=6, intermediate_size=40, max_position_embeddings=64
)


def save(model: Decoder, folder: Path, **options: Any) -> None:
    """Save a model as others do, without checksums, which would find every change before anything else."""
    save_with_checksums(model, folder, **options)
    (folder / CHECKSUMS).unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound model in three shards."""
    save(Decoder(CONFIG), tmp_path / "model", max_shard_bytes=20_000)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) == 3
    return tmp_path / "model"


def with_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file as its format says, whatever its header says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def test_shards_are_read_together(folder: Path) -> None:
    with ExitStack() as files:
        stored = open_weights(folder, files)
        assert stored["transformer.wte.weight"].shape == (61, 24)
        assert stored["transformer.wte.weight"].kind == "F32"
        assert stored["transformer.wte.weight"].num_bytes == 61 * 24 * 4
        rows = stored["transformer.wte.weight"].rows(3, 5)
        assert torch.equal(rows, loaded(folder).embedding.weight[3:5])


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names the file 'model-00002-of-00003\.safetensors', which is missing"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", ""]
)
def test_shards_outside_the_folder_are_refused(name: str, folder: Path) -> None:
    save_file({"transformer.wte.weight": torch.ones(61, 24)}, folder.parent / "x.safetensors")
    with_index(folder, lambda places: places.update({"transformer.wte.weight": name}))
    with pytest.raises(CheckpointError, match="shards are safetensors files in the same folder"):
        load(folder)


def test_a_shard_that_is_a_pickle_is_refused(folder: Path) -> None:
    with_index(folder, lambda places: places.update({"transformer.wte.weight": "pytorch_model.bin"}))
    with pytest.raises(CheckpointError, match="shards are safetensors files"):
        load(folder)


def test_index_and_shards_have_to_agree(folder: Path) -> None:
    with_index(folder, lambda places: places.update({"more": places["transformer.wte.weight"]}))
    with pytest.raises(CheckpointError, match=r"places 'more' in .*, which does not hold it"):
        load(folder)
    with_index(folder, lambda places: places.pop("more"))
    with_index(folder, lambda places: places.pop("transformer.wte.weight"))
    with pytest.raises(CheckpointError, match=r"holds 'transformer\.wte\.weight', which .* places in None"):
        load(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {"a": None}}])
def test_an_index_without_a_map_is_refused(index: object, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="weight_map"):
        load(folder)


@pytest.mark.parametrize("share", [0.0, 0.00005, 0.01, 0.5, 0.999])
def test_a_file_that_was_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    save(Decoder(CONFIG), tmp_path)
    path = tmp_path / "model.safetensors"
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(CheckpointError, match=r"damaged or no safetensors file .*fetch it again"):
        load(tmp_path)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    {
        "a header longer than the file": safetensors({}, length=10_000),
        "a header of 4 GB": safetensors({}, length=2**32),
        "a header of 2**63 bytes": safetensors({}, length=2**63),
        "no JSON": safetensors(b"{'a'"),
        "deep JSON": safetensors(b'{"a":' * 10_000),
        "a list": safetensors([]),
        "overlapping tensors": safetensors({"a": ENTRY, "b": ENTRY}, b"0" * 8),
        "a tensor beyond the end": safetensors({"a": ENTRY | {"data_offsets": [8, 16]}}, b"0" * 8),
        "a tensor that ends before it begins": safetensors({"a": ENTRY | {"data_offsets": [8, 0]}}, b"0" * 8),
        "a shape of another size": safetensors({"a": ENTRY | {"shape": [3]}}, b"0" * 8),
        "a shape that overflows": safetensors({"a": ENTRY | {"shape": [2**33, 2**33]}}, b"0" * 8),
        "a negative shape": safetensors({"a": ENTRY | {"shape": [-2]}}, b"0" * 8),
        "bytes that nobody owns": safetensors({"a": ENTRY}, b"0" * 9),
        "an unknown dtype": safetensors({"a": ENTRY | {"dtype": "F7"}}, b"0" * 8),
        "a pickle": pickle.dumps({"a": 1}),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_file_with_a_false_header_is_refused(content: tuple[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content[1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"), ExitStack() as files:
        open_file(path, files)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickles_are_never_opened(name: str, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "witness",))

    save(Decoder(CONFIG), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=rf"{name} is a pickle, which can run any code.*convert it"):
        load(tmp_path)
    assert not (tmp_path / "witness").exists()


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        load(tmp_path)
    save(Decoder(CONFIG), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        load(tmp_path)


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    save(Decoder(CONFIG), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="has neither"):
        load(tmp_path)


def hostile_folders(place: str):
    """Many ways to ask for much memory with few bytes, each tried once."""
    sound = Path(place) / "sound"
    save(Decoder(CONFIG), sound)
    load(sound)
    config = json.loads((sound / "config.json").read_text())
    weights = (sound / "model.safetensors").read_bytes()
    tensors = {name: tensor.shape for name, tensor in load_file(sound / "model.safetensors").items()}
    assert len(tensors) > 20
    configs = [
        {**config, name: value}
        for name in ("vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions")
        for value in (10**5, 10**9, 10**15, -1, "9" * 10**6)
    ]
    headers = [safetensors({}, length=size) for size in (2**20, 2**31, 2**40, 2**62)]
    cases = [(json.dumps(fields), weights) for fields in configs] + [(json.dumps(config), file) for file in headers]
    cases.append(('{"a":' * 10**6, weights))

    def work() -> None:
        for number, (text, content) in enumerate(cases):
            folder = Path(place) / f"hostile-{number}"
            folder.mkdir()
            (folder / "config.json").write_text(text)
            (folder / "model.safetensors").write_bytes(content)
            with pytest.raises(CheckpointError):
                load(folder)

    return work


def test_hostile_folders_take_little_memory(tmp_path: Path) -> None:
    assert peak_extra_bytes(hostile_folders, str(tmp_path)) < 80e6  # texts of 5 MB are read and parsed
