"""Paths in an object store answer as local ones do, retry what may pass, and lose no error."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from attnscope.errors import CheckpointError, SettingError
from attnscope.stores import retries
from attnscope.stores.paths import (
    AnyPath,
    StoreError,
    StorePath,
    append_byte,
    to_local_folder,
    to_path,
    write_file,
)
from attnscope.survey import Workers, open_survey, run_survey
from tests.survey.survey_process import SMALL, contents, write_model, write_text

ALONE = Workers(threads=1)


@pytest.fixture
def store() -> Iterator[StorePath]:
    path = to_path("memory://bucket/folder")
    assert isinstance(path, StorePath)
    yield path
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> AnyPath:
    return tmp_path if request.param == "local" else request.getfixturevalue("store")


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays before retries, which are not waited for."""
    found = list[float]()
    monkeypatch.setattr(retries.time, "sleep", found.append)
    return found


def fail(monkeypatch: pytest.MonkeyPatch, method: str, errors: list[Exception]) -> None:
    """Let the next calls of a method of the memory store raise errors."""
    original: Any = getattr(MemoryFileSystem, method)

    def called(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return original(*arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, method, called)


def test_a_folder_in_a_store_behaves_as_a_local_one(folder: AnyPath) -> None:
    write_file(folder / "a.json", b"old")
    write_file(folder / "a.json", b"new")
    (folder / "inner").mkdir(exist_ok=True)
    write_file(folder / "inner" / ".b.tmp", b"")
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "inner"]
    assert [path.name for path in (folder / "inner").glob(".*.tmp")] == [".b.tmp"]
    kinds = [(path.exists(), path.is_file(), path.is_dir()) for path in (folder / "a.json", folder / "inner")]
    assert kinds == [(True, True, False), (True, False, True)]
    assert not (folder / "none").exists()
    with (folder / "a.json").open("rb") as file:
        assert (folder / "a.json").read_bytes() == file.read() == b"new"
    assert [append_byte(folder / "attempts") for _ in range(3)] == [0, 1, 2]
    (folder / "a.json").unlink()
    (folder / "a.json").unlink(missing_ok=True)
    assert not (folder / "a.json").is_file()
    with pytest.raises(FileNotFoundError):
        (folder / "a.json").unlink()
    with pytest.raises(FileNotFoundError):
        (folder / "a.json").read_bytes()


def test_an_object_is_created_once(store: StorePath) -> None:
    (store / "one").create(b"1")
    with pytest.raises(FileExistsError):
        (store / "one").create(b"2")
    assert (store / "one").read_bytes() == b"1"


def test_a_conditional_write_whose_answer_is_lost_is_not_taken_for_that_of_another(
    store: StorePath, monkeypatch: pytest.MonkeyPatch, delays: list[float]
) -> None:
    write = MemoryFileSystem.pipe_file

    def write_and_fail(system: MemoryFileSystem, path: str, value: bytes, **options: Any) -> None:
        write(system, path, value, **options)
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", write)
        raise ConnectionResetError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", write_and_fail)
    (store / "one").create(b"1")
    assert (store / "one").read_bytes() == b"1"
    assert len(delays) == 1


def test_failures_that_may_pass_are_retried_and_then_raised(
    store: StorePath, monkeypatch: pytest.MonkeyPatch, delays: list[float]
) -> None:
    fail(monkeypatch, "pipe_file", [ConnectionResetError("reset"), TimeoutError("slow")])
    (store / "one").write_bytes(b"1")
    assert (store / "one").read_bytes() == b"1"
    assert tuple(delays) == retries.RETRY_DELAYS
    fail(monkeypatch, "info", [RuntimeError("one"), RuntimeError("two"), RuntimeError("three\nlines")])
    with pytest.raises(StoreError, match=r"^memory://bucket/folder/one: three lines$"):
        (store / "one").exists()  # not False: that would be an answer
    fail(monkeypatch, "info", [PermissionError("not permitted")])
    with pytest.raises(PermissionError):
        (store / "one").exists()
    assert len(delays) == 2 * len(retries.RETRY_DELAYS)


@pytest.mark.parametrize(
    "place", ["sftp://host/folder", "s3://", "memory:///", "http://host/folder", "simplecache::memory://a", "none://a"]
)
def test_other_urls_are_refused(place: str) -> None:
    with pytest.raises(SettingError, match="expected a folder, or a URL in an object store"):
        to_path(place)


def test_local_urls_and_slashes(tmp_path: Path, store: StorePath) -> None:
    assert to_path(f"file://{tmp_path}") == to_path(str(tmp_path)) == to_path(tmp_path) == tmp_path
    assert to_path("memory://bucket/folder//") == to_path(store) == store == pickle.loads(pickle.dumps(store))


def test_a_copy_ends_with_its_owner_and_is_limited(store: StorePath) -> None:
    class Owner:
        pass

    for name, size in (("whole", 5), ("large", 50)):
        (store / name).write_bytes(b"x" * size)
    owner = Owner()
    copy = to_local_folder(store, {"whole": 5, "large": 5, "missing": 5}, owner)
    assert {path.name: path.stat().st_size for path in copy.iterdir()} == {"whole": 5, "large": 6}
    del owner
    gc.collect()
    assert not copy.exists()


def test_a_survey_in_a_store_is_written_again_where_it_is_damaged(
    store: StorePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delays: list[float]
) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 3000)
    run_survey(model, text, tmp_path / "local", workers=ALONE, **SMALL)
    fail(monkeypatch, "pipe_file", [ConnectionResetError("reset")])
    survey = run_survey(model, text, str(store), workers=ALONE, **SMALL)
    assert (survey.folder, len(delays)) == (store, 1)
    expected = contents(tmp_path / "local")
    assert {name: (store / name).read_bytes() for name in expected} == expected
    table = store / "heads.parquet"
    for content, message in (
        (expected["heads.parquet"] + b"x", "heads.parquet is damaged: it has"),
        (b"", "heads.parquet is damaged: it has 0 bytes"),
        (None, "heads.parquet not found, but the survey is finished"),
    ):
        table.unlink() if content is None else table.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"^{store}/{message}"):
            open_survey(str(store))
        run_survey(model, text, str(store), workers=ALONE, **SMALL)
        assert table.read_bytes() == expected["heads.parquet"]


def test_a_store_that_cannot_be_reached_is_one_sentence(
    store: StorePath, monkeypatch: pytest.MonkeyPatch, delays: list[float]
) -> None:
    fail(monkeypatch, "info", [RuntimeError("no route")] * 3)
    with pytest.raises(SettingError, match=f"^{store} cannot be read: {store}: no route$"):
        open_survey(str(store))
