"""A site in an object store has the bytes of a local one, also after failures and kills."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from attnscope.cli.main import main
from attnscope.errors import SettingError
from attnscope.explorer.static_site import publish as publishing
from attnscope.explorer.static_site import site_writer
from attnscope.explorer.static_site.plan import select_heads
from attnscope.explorer.static_site.publish import publish_trace
from attnscope.formatting import format_bytes
from attnscope.recording import open_trace
from attnscope.stores import retries
from attnscope.stores.paths import StoreError, StorePath, to_path
from tests.explorer.serving import small_trace
from tests.explorer.test_static_site import mixed_trace, published, read_tree
from tests.survey.s3_server import HEADERS, Server, serve_s3

TIMEOUT_SECONDS = 300.0
TYPES = {
    "index.html": "text/html",
    "explorer.css": "text/css",
    "site.js": "text/javascript",
    "manifest.json": "application/json",
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StorePath]:
    monkeypatch.setattr(retries, "RETRY_DELAYS", (0.0, 0.0))
    path = to_path("memory://bucket/site")
    assert isinstance(path, StorePath)
    yield path
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the site in a local folder."""
    return read_tree(published(small_trace(), tmp_path_factory.mktemp("local") / "site"))


def publish(store: StorePath, *, name: str = "shown", reports: list[str] | None = None) -> None:
    trace = small_trace()
    report = None if reports is None else reports.append
    publish_trace(trace, str(store), select_heads(trace, []), name=name, report=report)


def contents(store: StorePath) -> dict[str, bytes]:
    return {name: (store / name).read_bytes() for name in store.sizes()}


def written_heads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The archives of heads that are written from now on."""
    found, write = list[str](), site_writer.write_head

    def write_and_note(*arguments: Any, **options: Any) -> Any:
        found.append(arguments[3])
        return write(*arguments, **options)

    monkeypatch.setattr(site_writer, "write_head", write_and_note)
    return found


def fail_uploads(monkeypatch: pytest.MonkeyPatch, *, after: int, name: str = "") -> list[str]:
    """Let uploads of some files fail after some uploads; return the names of those that succeed."""
    uploaded, upload = list[str](), MemoryFileSystem.put_file

    def upload_or_fail(system: MemoryFileSystem, lpath: str, rpath: str, **options: Any) -> None:
        if len(uploaded) >= after and rpath.endswith(name):
            raise ConnectionResetError("no route")
        upload(system, lpath, rpath, **options)
        uploaded.append(rpath)

    monkeypatch.setattr(MemoryFileSystem, "put_file", upload_or_fail)
    return uploaded


def test_a_site_has_the_bytes_of_a_local_one_and_the_manifest_is_last(
    store: StorePath, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = fail_uploads(monkeypatch, after=1000)
    publish(store)
    assert contents(store) == local
    assert [name.rpartition("/")[2] for name in uploaded[-2:]] == ["index.html", "manifest.json"]
    with pytest.raises(SettingError, match=f"^publish: {store} exists; give another folder, or remove it$"):
        publish(store)
    assert contents(store) == local


def test_a_failed_upload_ends_the_publication_which_continues(
    store: StorePath, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        fail_uploads(failing, after=3)
        with pytest.raises(StoreError, match="no route"):
            publish(store)
    names = set(contents(store))
    assert "manifest.json" not in names
    assert {".publish/L000H000.json", ".publish/L000H000.npz", ".publish/settings.json"} <= names
    assert not [name for name in names if name.startswith(".lock")]
    with pytest.raises(SettingError, match="unfinished site of another trace, other heads or another version"):
        publish(store, name="other")
    written, reports = written_heads(monkeypatch), list[str]()
    publish(store, reports=reports)
    assert reports == [f"continuing the unfinished site in {store}"]
    assert [name[-13:] for name in written] == [
        "L000/H003.bin",
        *(f"L001/H{head:03}.bin" for head in range(4)),
    ]
    assert contents(store) == local


def test_an_archive_of_another_size_is_written_again(
    store: StorePath, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        fail_uploads(failing, after=0, name="manifest.json")
        with pytest.raises(StoreError):
            publish(store)
    (damaged,) = (name for name in contents(store) if name.endswith("L001/H002.bin"))
    (store / damaged).write_bytes(b"other")
    written = written_heads(monkeypatch)
    publish(store)
    assert written == [damaged]
    assert contents(store) == local


def test_a_kill_while_records_are_removed_leaves_only_that_to_do(
    store: StorePath, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, removed = StorePath.unlink, list[str]()

    def remove_some(path: StorePath, missing_ok: bool = False) -> None:
        if path.name == "settings.json":
            raise StoreError("no route")
        removed.append(path.name)
        remove(path, missing_ok)

    with monkeypatch.context() as failing:
        failing.setattr(StorePath, "unlink", remove_some)
        with pytest.raises(StoreError):
            publish(store)
    assert len(removed) > 8
    assert contents(store).keys() - local.keys() == {".publish/settings.json"}
    written = written_heads(monkeypatch)
    publish(store)
    assert (contents(store), written) == (local, [])


def test_a_folder_with_something_else_is_left_alone(store: StorePath) -> None:
    (store / "mine").write_bytes(b"1")
    with pytest.raises(SettingError, match="exists; give another folder, or remove it"):
        publish(store)
    assert contents(store) == {"mine": b"1"}


def test_other_urls_are_refused_before_the_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_trace().save(tmp_path / "trace")
    assert main(["publish", str(tmp_path / "trace"), "--out", "sftp://host/site"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnscope: expected a folder, or a URL in an object store")
    assert error.count("\n") == 1


def content_type(server: Server, name: str) -> str:
    request = urllib.request.Request(f"{server.endpoint}/{server.bucket}/{name}", headers=HEADERS, method="HEAD")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["content-type"]


def test_a_site_in_s3_survives_a_kill_and_has_the_bytes_of_a_local_one(tmp_path: Path) -> None:
    mixed_trace().save(tmp_path / "trace")
    with publishing._threads(1):  # as the processes below: sums round alike
        local = read_tree(published(open_trace(tmp_path / "trace"), tmp_path / "site"))
    shutil.rmtree(tmp_path / "site")
    with serve_s3() as server:
        arguments = ("publish", tmp_path / "trace", "--name", "shown", "--out", server.url("site"))
        command = ("-m", "attnscope.cli.main", *arguments, "--workers", "2")

        def finished() -> list[str]:
            return [name for name in server.names("site/.publish") if name.startswith("L") and name.endswith(".json")]

        with server.start(*command) as killed:
            try:
                deadline = time.monotonic() + TIMEOUT_SECONDS
                while len(finished()) < 2 and killed.poll() is None:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
            finally:
                killed.kill()
        before, names = finished(), server.names("site")
        assert 2 <= len(before) < 11, killed.communicate()[0]  # archives of 7 heads and 4 layers
        assert ("manifest.json" in names, "index.html" in names, ".lock.00000001.json" in names) == (False, False, True)

        printed = server.run(*command)
        assert f"publish: continuing the unfinished site in {server.url('site')}\n" in printed
        size = format_bytes(sum(map(len, local.values())))
        assert f"{server.url('site')}: 7 heads, {len(local)} files, {size}" in printed.splitlines()
        assert {name: server.read(f"site/{name}") for name in server.names("site")} == local
        types = {name: content_type(server, f"site/{name}") for name in TYPES}
        assert types == TYPES
    manifest: dict[str, Any] = json.loads(local["manifest.json"])
    assert manifest["files"].keys() == local.keys() - {"manifest.json"}
