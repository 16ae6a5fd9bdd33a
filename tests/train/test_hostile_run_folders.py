"""A run folder of a stranger does not run code, whatever its files contain."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from attnscope.checksums import crc32_file
from attnscope.cli.main import main
from attnscope.errors import CheckpointError
from attnscope.models.checked_json import encode_checked_json
from attnscope.train import reversal, train
from attnscope.train.checkpoint_files import METADATA, MetadataUnpickler, read_manifest, write_manifest

SHARE = "__0_0.distcp"
NEWEST = Path("checkpoints") / "step-00000003"


class Payload:
    """Unpickles to a new folder."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A path that exists when code of a stranger has run; the test of the payload itself is part of it."""
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Payload(marker)))
    marker.rmdir()
    torch.load(saved(Payload(marker)), weights_only=False)
    marker.rmdir()
    return marker


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(reversal(steps=3), folder, progress=False)
    return folder


@pytest.fixture
def run(complete: Path, tmp_path: Path) -> Path:
    return shutil.copytree(complete, tmp_path / "run")


def saved(value: object) -> io.BytesIO:
    content = io.BytesIO()
    torch.save(value, content)
    content.seek(0)
    return content


def read_metadata(place: Path) -> Metadata:
    with (place / METADATA).open("rb") as file:
        return pickle.load(file)


def write_metadata(place: Path, metadata: object) -> None:
    (place / METADATA).write_bytes(pickle.dumps(metadata))


def correct_checksums(place: Path) -> None:
    """Make the checksums of a changed checkpoint right, as a stranger would."""
    manifest = read_manifest(place)
    names = sorted(path.name for path in place.iterdir() if path.name != "checkpoint.json")
    write_manifest(place, manifest._replace(files={name: crc32_file(place / name) for name in names}))


def replace_entry(place: Path, index: MetadataIndex, content: bytes) -> None:
    """Make an entry of a checkpoint lead to other bytes."""
    metadata, share = read_metadata(place), place / SHARE
    stored = metadata.storage_data[index]
    stored.offset, stored.length = share.stat().st_size, len(content)
    share.write_bytes(share.read_bytes() + content)
    write_metadata(place, metadata)


def find_entry(place: Path, name: str) -> MetadataIndex:
    return next(index for index in read_metadata(place).storage_data if index.fqn == name)


def hostile_metadata(place: Path, marker: Path) -> None:
    write_metadata(place, Payload(marker))


def hostile_metadata_inside(place: Path, marker: Path) -> None:
    metadata = read_metadata(place)
    metadata.planner_data = Payload(marker)
    write_metadata(place, metadata)


def hostile_metadata_of_a_rank(place: Path, marker: Path) -> None:
    (place / METADATA).write_bytes(b"damaged")
    (place / "__0.metadata").write_bytes(pickle.dumps(Payload(marker)))


def hostile_value(place: Path, marker: Path) -> None:
    entry = find_entry(place, "optimizer.param_groups.0.lr")
    replace_entry(place, entry, saved(Payload(marker)).getvalue())


def hostile_tensor(place: Path, marker: Path) -> None:
    replace_entry(place, find_entry(place, "model.head.weight"), saved(Payload(marker)).getvalue())


ATTACKS = [hostile_metadata, hostile_metadata_inside, hostile_metadata_of_a_rank, hostile_value, hostile_tensor]


@pytest.mark.parametrize("attack", ATTACKS)
def test_resuming_runs_no_code_of_the_folder(attack: Callable[[Path, Path], None], run: Path, marker: Path) -> None:
    attack(run / NEWEST, marker)
    correct_checksums(run / NEWEST)
    with pytest.raises(CheckpointError, match=r"step-00000003 is of another model \("):
        train(reversal(steps=3), run, progress=False)
    assert not marker.exists()


def test_a_checkpoint_changed_by_nothing_is_loaded(run: Path) -> None:
    replace_entry(run / NEWEST, find_entry(run / NEWEST, "optimizer.param_groups.0.lr"), saved(0.25).getvalue())
    correct_checksums(run / NEWEST)
    assert train(reversal(steps=3), run, progress=False).step == 3


def test_metadata_that_names_another_file_is_refused(run: Path, tmp_path: Path) -> None:
    metadata = read_metadata(run / NEWEST)
    shutil.copy(run / NEWEST / SHARE, tmp_path / "outside")
    for stored in metadata.storage_data.values():
        stored.relative_path = str(tmp_path / "outside")
    write_metadata(run / NEWEST, metadata)
    correct_checksums(run / NEWEST)
    with pytest.raises(CheckpointError, match="is not a file of the checkpoint"):
        train(reversal(steps=3), run, progress=False)


def test_the_metadata_that_torch_writes_is_read(complete: Path) -> None:
    with (complete / NEWEST / METADATA).open("rb") as file:
        metadata = MetadataUnpickler(file).load()
    expected = read_metadata(complete / NEWEST)
    assert metadata.storage_data == expected.storage_data
    assert metadata.planner_data == expected.planner_data
    assert metadata.state_dict_metadata.keys() == expected.state_dict_metadata.keys()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("os", "system"),
        ("torch", "load"),
        ("torch.serialization", "load"),
        ("torch", "os.system"),
    ],
)
def test_no_other_name_is_loaded(module: str, name: str) -> None:
    with pytest.raises(CheckpointError, match="which is not loaded"):
        MetadataUnpickler(io.BytesIO()).find_class(module, name)


def test_the_default_folder_is_not_adopted(
    marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    place = tmp_path / "runs" / "reversal" / "checkpoints" / "step-00000001"
    place.mkdir(parents=True)
    write_metadata(place, Payload(marker))
    (place / "checkpoint.json").write_text('{"step": 1, "tensor": 1}')
    before = sorted(path for path in tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "reversal", "--steps", "3"]) != 0
    assert "has checkpoints, but no run.json; choose another folder" in capsys.readouterr().err
    assert not marker.exists()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "events", "heads", "model", "tokens", "tokenizer"])
def test_what_is_of_no_run_is_neither_used_nor_touched(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").write_text("mine")
    with pytest.raises(ValueError, match=f"has {name}, but no run.json"):
        train(reversal(steps=3), tmp_path, progress=False)
    assert (tmp_path / name / "mine").read_text() == "mine"


def test_checkpoints_in_a_folder_that_never_began_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json.unfinished").touch()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"has checkpoints, but no run\.json"):
        train(reversal(steps=3), tmp_path, progress=False)


def test_a_run_without_an_id_is_refused(run: Path) -> None:
    fields = json.loads((run / "run.json").read_text())
    (run / "run.json").write_bytes(encode_checked_json({"other": fields.pop("id")} | fields))
    with pytest.raises(ValueError, match="has no field 'id'; choose another folder"):
        train(reversal(steps=3), run, progress=False)


@pytest.mark.parametrize("attack", ATTACKS)
def test_heads_over_training_opens_no_checkpoint(
    attack: Callable[[Path, Path], None], run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attack(run / NEWEST, marker)
    correct_checksums(run / NEWEST)
    main(["heads", "--over-training", str(run), "--pictures", str(tmp_path / "pictures")])
    assert not marker.exists()
