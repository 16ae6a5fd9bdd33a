"""One process at a time holds a folder in an object store; a killed one does not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import fsspec
import pytest

from attnscope.errors import SettingError
from attnscope.stores import lock
from attnscope.stores.lock import lock_any_folder
from attnscope.stores.paths import StorePath, to_path
from tests.locking import locked_at_once

FIRST, SECOND = ".lock.00000001.json", ".lock.00000002.json"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[StorePath]:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.005)
    path = to_path("memory://locks/folder")
    assert isinstance(path, StorePath)
    (path / "survey.json").write_bytes(b"{}")
    yield path
    fsspec.filesystem("memory").store.clear()


def names(folder: StorePath) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


def owner(pid: int, *, kernel: str | None = None) -> bytes:
    """The lock of a process that does not write it again."""
    found = {"host": socket.gethostname(), "boot_id": kernel or lock._kernel(), "pid": pid, "since": "now"}
    return f"{json.dumps(found)}\ntoken 0\n".encode()


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_a_second_one_waits_for_a_heartbeat_and_names_the_holder(folder: StorePath) -> None:
    with lock_any_folder(folder):
        assert names(folder) == [FIRST]
        with pytest.raises(SettingError, match=f"^{folder} is in use by process {os.getpid()} on .* another folder$"):
            lock_any_folder(folder).__enter__()
        assert names(folder) == [FIRST]
    assert names(folder) == []


def test_the_lock_of_a_process_of_this_machine_that_has_ended_is_taken_over_at_once(folder: StorePath) -> None:
    (folder / FIRST).write_bytes(owner(ended_process()))
    with lock_any_folder(folder):
        assert names(folder) == [SECOND]
    assert names(folder) == []


@pytest.mark.parametrize(
    "content",
    [owner(1, kernel="of another machine"), owner(os.getpid()), b"", b"[]", b"{}\n"],
    ids=["other machine", "other process with the number", "empty", "list", "object"],
)
def test_a_lock_that_nobody_writes_again_is_taken_over_after_a_while(
    folder: StorePath, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.1)
    (folder / FIRST).write_bytes(content)
    slept = list[float]()
    sleep = lock.time.sleep
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: (slept.append(seconds), sleep(seconds)))
    with lock_any_folder(folder):
        assert names(folder) == [SECOND]
    assert slept


def test_of_many_that_start_at_once_one_gets_the_folder(folder: StorePath) -> None:
    assert locked_at_once(lambda: lock_any_folder(folder)) == 1
    assert names(folder) == []


def test_a_lock_that_appears_during_a_takeover_wins(folder: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of a stale lock wakes up, unlocks the folder, and a third one takes the first number again."""
    stale = folder / ".lock.00000007.json"
    stale.write_bytes(owner(ended_process()))
    keep = lock._keep

    def keep_late(path: StorePath, held: ExitStack) -> None:
        stale.unlink()
        (folder / FIRST).write_bytes(owner(os.getpid()))
        keep(path, held)

    monkeypatch.setattr(lock, "_keep", keep_late)
    with pytest.raises(SettingError, match="in use by process"):
        lock_any_folder(folder).__enter__()
    assert names(folder) == [FIRST]
