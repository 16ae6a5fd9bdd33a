"""One process at a time holds a folder; a killed one does not, whatever the file system offers."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import filelock
import pytest

from attnscope import folder_lock
from attnscope.errors import SettingError
from attnscope.folder_lock import LOCK, OWNER, lock_folder, scratch_folder
from tests.locking import locked_at_once

HOLD = """
import sys, time
from pathlib import Path
from attnscope import folder_lock
folder_lock.HEARTBEAT_SECONDS = 0.05
with folder_lock.lock_folder(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_the_scratch_folder_of_a_killed_process_is_removed_and_that_of_a_running_one_is_not(tmp_path: Path) -> None:
    (tmp_path / ".new-0").mkdir()
    (tmp_path / ".other-0").mkdir()
    with holder(tmp_path / ".new-0") as running:
        with pytest.raises(SettingError, match="in use"), make_scratch(tmp_path):
            pass
        assert (tmp_path / ".new-0").exists()
        running.kill()
        running.wait()
        with make_scratch(tmp_path) as scratch:
            assert {path.name for path in tmp_path.iterdir()} == {scratch.name, ".other-0"}
    assert {path.name for path in tmp_path.iterdir()} == {".other-0"}


def make_scratch(folder: Path) -> AbstractContextManager[Path]:
    return scratch_folder(folder, ".new-", SettingError("in use"))


def take(folder: Path) -> list[str]:
    """Lock and unlock a folder; what was reported."""
    reported: list[str] = []
    with lock_folder(folder, reported.append):
        assert json.loads((folder / OWNER).read_text())["pid"] == os.getpid()
    return reported


def pretend_other_host(folder: Path) -> None:
    """Make the owner that a folder names one of another host."""
    path = folder / OWNER
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot_id": "other", "host": "elsewhere"}))


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no locks."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "STALE_SECONDS", 2.0)
    monkeypatch.setattr(folder_lock, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(folder_lock, "HEARTBEAT_SECONDS", 0.05)


def test_a_lock_leaves_nothing_but_an_empty_file(tmp_path: Path) -> None:
    assert take(tmp_path) == take(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_second_process_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        words = rf"in use by process {process.pid} on {socket.gethostname()} since \d{{4}}-\d\d-\d\d .* UTC; wait"
        with pytest.raises(SettingError, match=words):
            take(tmp_path)
        assert (tmp_path / OWNER).exists()
        process.communicate("")
        assert process.returncode == 0
    assert take(tmp_path) == []


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert take(tmp_path) == [
        f"took over {tmp_path} from process {process.pid} on {socket.gethostname()}, which ended without unlocking it"
    ]
    assert take(tmp_path) == []


def test_a_stopped_process_keeps_its_lock(tmp_path: Path, short: None) -> None:
    with holder(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2 * folder_lock.STALE_SECONDS)
        with pytest.raises(SettingError, match=f"in use by process {process.pid}"):
            take(tmp_path)


def test_an_error_inside_unlocks(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="mine"), lock_folder(tmp_path, print):
        raise FileExistsError("mine")
    assert take(tmp_path) == []


@pytest.mark.usefixtures("short", "without_locks")
def test_without_locks_the_heartbeat_decides(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(SettingError, match=f"in use by process {process.pid}"):
            take(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert len(take(tmp_path)) == 1
    assert take(tmp_path) == []


@pytest.mark.usefixtures("short")
def test_a_heartbeat_of_another_host_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(tmp_path) as process:
        pretend_other_host(tmp_path)
        (tmp_path / LOCK).unlink()  # as on a disk whose locks other hosts do not see
        with pytest.raises(SettingError, match=f"in use by process {process.pid} on elsewhere"):
            take(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (sentence,) = take(tmp_path)
    assert f"from process {process.pid} on elsewhere" in sentence


@pytest.mark.usefixtures("without_locks")
def test_of_many_that_start_at_once_without_locks_one_gets_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "HEARTBEAT_SECONDS", 0.05)  # the others see it, and do not wait until it is stale
    assert locked_at_once(lambda: lock_folder(tmp_path, print)) == 1


@pytest.mark.usefixtures("short", "without_locks")
def test_of_two_that_take_over_at_once_one_gets_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
    read_owner, others = folder_lock._read_owner, list[str]()

    def read_late(folder: Path) -> folder_lock.LockOwner | None:
        if (folder / folder_lock.TAKEOVER).exists() and not others:  # the second one comes while the first takes over
            others.append("started")
            with pytest.raises(FileExistsError):
                folder_lock._remove_owner(folder, folder_lock.UNKNOWN)
        return read_owner(folder)

    monkeypatch.setattr(folder_lock, "_read_owner", read_late)
    assert len(take(tmp_path)) == 1
    assert others == ["started"]


@pytest.mark.usefixtures("short", "without_locks")
def test_who_takes_over_late_does_not_remove_the_new_owner(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        stale = folder_lock._read_owner(tmp_path)
        process.kill()
        process.wait()
    assert stale is not None
    with lock_folder(tmp_path, print), pytest.raises(FileExistsError):
        folder_lock._remove_owner(tmp_path, stale)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"host": 1, "boot_id": "", "pid": 1, "since": ""}', "\0" * 5000])
def test_an_invalid_owner_is_taken_over_when_it_does_not_change(tmp_path: Path, content: str) -> None:
    (tmp_path / OWNER).write_text(content)
    assert len(take(tmp_path)) == 1


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(SettingError, match=f"^{tmp_path} cannot be locked: "):
        take(tmp_path)
