import errno
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from attnscope.errors import SettingError
from attnscope.survey.corpus.files import AccessError, file_format, file_version, list_files, open_file


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


def test_links_to_files_are_followed_and_a_version_is_that_of_the_file(tmp_path):
    (tmp_path / "corpus").mkdir()
    target = tmp_path / "blob"
    target.write_text("here")
    (tmp_path / "corpus" / "a.txt").symlink_to(target)
    for source in (tmp_path / "corpus", tmp_path / "corpus" / "*.txt", tmp_path / "corpus" / "a.txt"):
        os.utime(target, (1, 1))
        [before] = list_files([str(source)])
        assert (before.size, file_version(before.url)) == (4, before.version)
        os.utime(target, (2, 2))
        assert file_version(before.url) != before.version
    target.unlink()
    with pytest.raises(SettingError, match=r"a\.txt cannot be read: No such file"):
        list_files([str(tmp_path / "corpus")])


@pytest.mark.parametrize("name", [b"caf\xe9.txt", b"a::b.txt", b"zip::c.txt", b"line\nbreak.txt", b"back\\xe9.txt"])
def test_any_name_on_disk_is_listed_and_opened(tmp_path, name):
    (tmp_path / "plain.txt").write_bytes(b"plain")
    (tmp_path / os.fsdecode(name)).write_bytes(b"here")
    path = f"{tmp_path}/{os.fsdecode(name)}"
    for source in (str(tmp_path), f"{tmp_path}/*.txt", path, f"file://{path}"):
        [found] = [file for file in list_files([source]) if not file.url.endswith("plain.txt")]
        assert found.url.encode("utf-8").isascii()
        assert (found.format, found.size, found.version) == ("text", 4, file_version(found.url))
        assert file_format(found.url) == "text"
        with open_file(found.url) as file:
            assert file.read() == b"here"


def test_a_name_that_only_a_local_file_may_have_is_refused_elsewhere(memory):
    memory.pipe("/corpus/a::b.txt", b"there")
    with pytest.raises(SettingError, match=r"memory:///corpus/a::b\.txt has '::' in its name.*rename it"):
        list_files(["memory://corpus"])


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text("here")
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("/b"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for source in (str(tmp_path), f"{tmp_path}/**/*.txt", f"{tmp_path}/*"):
        with pytest.raises(SettingError, match=r"cannot read .*: Permission denied"):
            list_files([source])


def read_again(url: str) -> bytes:
    with open_file(url) as file:
        file.seek(0)
        return file.read(1)


class ExpiredError(Exception):
    """As libraries of object stores have their own."""


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "No such file"), TimeoutError(), ExpiredError("token\nexpired"), KeyError("a")]
)
@pytest.mark.parametrize("method", ["open", "read", "seek"])
def test_every_error_of_a_file_system_is_about_access(memory, monkeypatch, error, method):
    memory.pipe("/a.txt", b"here")

    def fail(*args, **kwargs):
        raise error

    owner = type(memory) if method == "open" else type(memory.store["/a.txt"])
    monkeypatch.setattr(owner, method, fail)
    with pytest.raises(AccessError, match=r"^memory://.*a\.txt cannot be read: .+$") as caught:
        read_again("memory://a.txt")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__cause__ is error


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
