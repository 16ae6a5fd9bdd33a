"""A lock on a folder, so that only one process at a time writes to it.

In: a folder. Out: the lock, or an error that names the process that holds it; or a locked temporary folder in it. The
operating system releases the lock when its process ends, also after kill -9. Some shared disks do not show locks to
other hosts, or have none, so the holder also touches a file every few seconds, and a lock of another host is free when
that stops.
Does not know: what the folder contains. Memory: O(1).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from attnscope.errors import AttnScopeError, SettingError

LOCK = ".lock"
OWNER = ".lock.json"
"""Names the holder; its modification time is the heartbeat."""
TAKEOVER = ".lock.takeover"
"""Exists while a process takes over a stale lock."""
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 30.0
"""A holder on another host whose heartbeat stops for this long has ended."""
POLL_SECONDS = 0.5
MAX_OWNER_BYTES = 2**10
WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""How file systems without locks answer."""


class LockOwner(NamedTuple):
    """The process that holds a lock."""

    host: str
    boot_id: str
    """Identifies the running kernel: processes under the same kernel always see each other's locks."""
    pid: int
    since: str
    """When the process took the lock, in UTC."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


UNKNOWN = LockOwner("an unknown host", "", 0, "an unknown time")
"""Stands for an owner that cannot be read."""


@contextmanager
def lock_folder(folder: Path, report: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock of a folder; a lock that a killed process left behind is taken over.

    Args:
        folder: The folder, which must exist. `.lock` and `.lock.json` are written to it.
        report: Called with one sentence if the lock was taken over.

    Raises:
        SettingError: Another process holds the lock, or the folder cannot be written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, lock_folder(Path(folder), print):
    ...     try:
    ...         with lock_folder(Path(folder), print):
    ...             pass
    ...     except SettingError as error:
    ...         print(str(error).partition(" process ")[0].removeprefix(folder))
     is in use by
    """
    with ExitStack() as held:
        try:
            is_native = _lock_file(folder, held)
            before = _read_owner(folder)
            if before is not None and not (is_native and before.boot_id == boot_id()):
                before = _wait_until_stale(folder, before)
            if before is not None:
                _remove_owner(folder, before)
            _write_owner(folder, held)
        except FileExistsError:
            raise in_use(folder, _read_owner(folder)) from None
        except OSError as error:
            raise SettingError(f"{folder} cannot be locked: {error.strerror or error}") from error
        if before is not None:
            report(f"took over {folder} from {before}, which ended without unlocking it")
        yield


@contextmanager
def scratch_folder(folder: Path, prefix: str, in_use: AttnScopeError) -> Iterator[Path]:
    """Make a temporary folder inside a folder, and remove it at the end, with those that killed processes left behind.

    Args:
        folder: The folder, which must exist.
        prefix: How the names of all temporary folders of this kind begin.
        in_use: Raised if another process has one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, ".unfinished-0").mkdir()
    ...     with scratch_folder(Path(folder), ".unfinished-", SettingError("in use")) as scratch:
    ...         print([path == scratch for path in Path(folder).iterdir()])
    [True]
    """
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=prefix))
    try:
        with lock_folder(scratch, _ignore):
            for left in folder.glob(f"{prefix}*"):
                if left == scratch:
                    continue
                try:
                    with lock_folder(left, _ignore):
                        shutil.rmtree(left, ignore_errors=True)
                except SettingError as error:
                    if left.exists():
                        raise in_use from error
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _ignore(_: str) -> None: ...


def _lock_file(folder: Path, held: ExitStack) -> bool:
    """Take the lock of the operating system; False if the file system has none."""
    from filelock import FileLock, Timeout

    try:
        held.enter_context(FileLock(folder / LOCK, timeout=0, fallback_to_soft=False))
    except Timeout:
        raise in_use(folder, _read_owner(folder)) from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return False
    return True


def _wait_until_stale(folder: Path, owner: LockOwner) -> LockOwner | None:
    """The owner, when its heartbeat has stopped for long enough; None if it unlocks the folder meanwhile."""
    first, until = _heartbeat(folder), time.monotonic() + STALE_SECONDS
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        now = _read_owner(folder)
        if now is None:
            return None
        if now != owner or _heartbeat(folder) != first:
            raise in_use(folder, _read_owner(folder))
    return owner


def _remove_owner(folder: Path, stale: LockOwner) -> None:
    """Remove the file of a stale owner; raises FileExistsError if another process takes over at the same time."""
    marker = folder / TAKEOVER
    marker.touch(exist_ok=False)  # atomic, also where the file system has no locks
    try:
        if _read_owner(folder) not in (stale, None):
            raise FileExistsError(errno.EEXIST, "another process has taken over", str(folder))
        (folder / OWNER).unlink(missing_ok=True)
    finally:
        marker.unlink()


def _heartbeat(folder: Path) -> int:
    """The time of the last heartbeat; opening the file makes a network file system ask its server."""
    with suppress(FileNotFoundError), (folder / OWNER).open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns
    return 0


def _write_owner(folder: Path, held: ExitStack) -> None:
    """Write the owner, and keep its heartbeat going until the lock is released."""
    path, ended = folder / OWNER, threading.Event()
    with path.open("x", encoding="utf-8") as file:  # fails if another process has written it
        json.dump(this_process(boot_id())._asdict(), file)
    held.callback(path.unlink, missing_ok=True)

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(path)

    threading.Thread(target=beat, name="folder-lock", daemon=True).start()
    held.callback(ended.set)


def _read_owner(folder: Path) -> LockOwner | None:
    """The owner that the folder names, `UNKNOWN` if its file is invalid, None if there is no file."""
    path = folder / OWNER
    if not path.is_file():  # opening a named pipe would block
        return None
    try:
        with path.open("rb") as file:
            return parse_owner(file.read(MAX_OWNER_BYTES))
    except FileNotFoundError:
        return None
    except OSError:
        return UNKNOWN


def parse_owner(content: bytes) -> LockOwner:
    """The owner that the content of a file names; `UNKNOWN` if it is invalid."""
    try:
        found = LockOwner(**json.loads(content))
    except (ValueError, TypeError):
        return UNKNOWN
    is_valid = isinstance(found.pid, int) and all(
        isinstance(text, str) and text.isprintable() for text in (found.host, found.boot_id, found.since)
    )
    return found if is_valid else UNKNOWN


def this_process(kernel: str) -> LockOwner:
    """The calling process, as the owner of a lock that it takes now."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return LockOwner(socket.gethostname(), kernel, os.getpid(), since)


def in_use(folder: object, owner: LockOwner | None) -> SettingError:
    """The error for a folder that another process has locked."""
    shown = "another process" if owner is None or owner == UNKNOWN else f"{owner} since {owner.since}"
    return SettingError(f"{folder} is in use by {shown}; wait until it ends, stop it, or choose another folder")


def boot_id() -> str:
    """Identifies the running kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
