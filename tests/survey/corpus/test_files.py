import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from attnscope.errors import SettingError
from attnscope.survey.corpus.files import list_files, open_file


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """A file system without a disk, empty before and after."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def names(sources, folder: Path) -> list[str]:
    return [str(Path(source.url).relative_to(folder)) for source in list_files(sources)]


def test_kinds_follow_from_suffixes_and_other_files_of_a_folder_are_passed_over(tmp_path):
    for name in ("a.txt", "b.MD", "c.jsonl", "d.ndjson", "e.parquet", "f.png", "README"):
        (tmp_path / name).write_bytes(b"1234567")
    found = list_files([str(tmp_path)])
    assert [(Path(source.url).name, source.format) for source in found] == [
        ("a.txt", "text"),
        ("b.MD", "text"),
        ("c.jsonl", "jsonl"),
        ("d.ndjson", "jsonl"),
        ("e.parquet", "parquet"),
    ]
    assert {source.size for source in found} == {7}


def test_folders_and_globs_are_sorted_and_sources_keep_their_order(tmp_path):
    (tmp_path / "b" / "deep").mkdir(parents=True)
    for name in ("z.txt", "b/y.md", "b/a.txt", "b/deep/x.jsonl", "c.txt"):
        (tmp_path / name).write_text(name)
    everything = ["b/a.txt", "b/deep/x.jsonl", "b/y.md", "c.txt", "z.txt"]
    assert names([str(tmp_path)], tmp_path) == everything
    assert names([f"{tmp_path}/*.txt"], tmp_path) == ["c.txt", "z.txt"]
    assert names([f"{tmp_path}/**/*.txt"], tmp_path) == ["b/a.txt", "c.txt", "z.txt"]
    assert names([f"{tmp_path}/*"], tmp_path) == everything
    assert names([f"{tmp_path}/z.txt", f"{tmp_path}/b"], tmp_path) == ["z.txt", *everything[:3]]


def test_a_file_that_is_named_twice_comes_once(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    assert names([f"{tmp_path}/b.txt", str(tmp_path), f"{tmp_path}/*.txt"], tmp_path) == ["b.txt", "a.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    for name in ("a[1].txt", "a1.txt"):
        (tmp_path / name).write_text(name)
    assert names([f"{tmp_path}/a[1].txt"], tmp_path) == ["a[1].txt"]


def test_addresses_hold_in_another_working_directory(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    [source] = list_files(["a.txt"])
    monkeypatch.chdir("/")
    with open_file(source.url) as file:
        assert file.read() == b"here"


def test_memory_and_disk_can_be_mixed(memory, tmp_path):
    (tmp_path / "disk.txt").write_text("disk")
    for name in ("b.txt", "a.jsonl", "deep/c.txt", "d.png"):
        memory.pipe(f"/corpus/{name}", name.encode())
    found = [source.url for source in list_files(["memory://corpus", str(tmp_path), "memory://corpus/*.txt"])]
    assert [url.rpartition("/")[2] for url in found] == ["a.jsonl", "b.txt", "c.txt", "disk.txt"]
    assert all(url.startswith("memory://") for url in found[:3])
    with open_file(found[2]) as file:
        assert file.read() == b"deep/c.txt"


def test_a_file_in_an_archive_has_an_address(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("b.txt", "second")
        archive.writestr("a.txt", "first")
    found = list_files([f"zip://*.txt::{tmp_path}/all.zip"])
    contents = []
    for source in found:
        with open_file(source.url) as file:
            contents.append(file.read())
    assert contents == [b"first", b"second"]


def test_a_version_is_another_when_the_file_is_and_the_same_when_not(memory, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    [before] = list_files([str(path)])
    assert list_files([str(tmp_path)]) == [before]
    os.utime(path, (1, 1))
    [touched] = list_files([str(path)])
    assert touched.version != before.version
    memory.pipe("/a.txt", b"one")
    [alone], [within] = list_files(["memory://a.txt"]), list_files(["memory://"])
    assert alone == within


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("missing.txt", "not found"),
        ("missing*.txt", "not found"),
        ("empty", "no .txt"),
        ("a.png", "unsupported file type: "),
        ("no-such-protocol://a.txt", "cannot read"),
    ],
)
def test_a_source_with_nothing_to_read_is_refused_by_name(tmp_path, monkeypatch, source, fault):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(SettingError, match=fault) as caught:
        list_files([source])
    assert source in str(caught.value)
