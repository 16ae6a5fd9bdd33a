"""A lock on a folder that is local or in an object store, so that only one command at a time writes to it.

In: a folder, local or in an object store. Out: the lock, or an error that names the process that holds it. Locally it
is that of `folder_lock`. In a store, the holder keeps an object `.lock.NUMBER.json`, created by a conditional write,
and writes it again every few seconds. An object that stays the same for a minute, or whose process on this machine has
ended, is that of a killed command: the next one takes the next number, so that only one of several can take over.
Does not know: what the folder contains. Memory: O(1).
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from attnscope.errors import SettingError
from attnscope.folder_lock import UNKNOWN, LockOwner, boot_id, in_use, lock_folder, parse_owner, this_process
from attnscope.stores.paths import AnyPath, StorePath

PATTERN = ".lock.*.json"
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""A holder that has not written its object for this long has ended."""
POLL_SECONDS = 0.5


@contextmanager
def lock_any_folder(folder: AnyPath, report: Callable[[str], object] | None = None) -> Iterator[None]:
    """Hold the lock of a folder; a lock that a killed process left behind is taken over.

    Args:
        folder: The folder. A local one must exist.
        report: Called with one sentence if the lock of a local folder was taken over.

    Raises:
        SettingError: Another process holds the lock, or the folder cannot be written to.

    >>> from attnscope.stores.paths import to_path
    >>> with lock_any_folder(to_path("memory://locked")):
    ...     print([path.name for path in to_path("memory://locked").iterdir()])
    ['.lock.00000001.json']
    """
    with ExitStack() as held:
        if isinstance(folder, StorePath):
            try:
                _take(folder, held)
            except OSError as error:
                raise SettingError(f"{folder} cannot be locked: {error}") from error
        else:
            held.enter_context(lock_folder(folder, report or (lambda _: None)))
        yield


def _take(folder: StorePath, held: ExitStack) -> None:
    """Create the next lock, and check that no other one is in use."""
    stale = sorted(folder.glob(PATTERN), key=str)
    for path in stale:
        _wait_until_stale(folder, path)
    own = folder / f".lock.{max(map(_number, stale), default=0) + 1:08}.json"
    try:
        _keep(own, held)
    except FileExistsError:
        raise in_use(folder, _owner(_read(own))) from None
    for path in folder.glob(PATTERN):  # a store lists what has been written before
        if path in stale:
            path.unlink(missing_ok=True)
        elif path != own:
            raise in_use(folder, _owner(_read(path)))


def _wait_until_stale(folder: StorePath, path: StorePath) -> None:
    """Return when the holder of a lock has ended; raise an error if it works."""
    first, until = _read(path), time.monotonic() + STALE_SECONDS
    while (found := _read(path)) is not None and not _has_ended(_owner(found)):
        if found != first:
            raise in_use(folder, _owner(found))
        if time.monotonic() >= until:
            return
        time.sleep(POLL_SECONDS)


def _has_ended(owner: LockOwner) -> bool:
    """Whether an owner was a process of this machine that has ended."""
    if owner == UNKNOWN or owner.boot_id != _kernel():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _keep(path: StorePath, held: ExitStack) -> None:
    """Create a lock, and write it again every few seconds until it is released."""
    owner, token, ended = json.dumps(this_process(_kernel())._asdict()), secrets.token_hex(8), threading.Event()

    def content(beat: int) -> bytes:
        return f"{owner}\n{token} {beat}\n".encode()

    def beat() -> None:
        beats = 0
        while not ended.wait(HEARTBEAT_SECONDS):
            beats += 1
            with suppress(OSError):
                path.write_bytes(content(beats))

    def release() -> None:
        ended.set()
        thread.join()  # it would write the lock again
        with suppress(OSError):  # as after a kill
            path.unlink(missing_ok=True)

    path.create(content(0))
    thread = threading.Thread(target=beat, name="store-lock", daemon=True)
    thread.start()
    held.callback(release)


def _read(path: StorePath) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _owner(content: bytes | None) -> LockOwner:
    return parse_owner((content or b"").partition(b"\n")[0])


def _number(path: StorePath) -> int:
    number = path.name.split(".")[2]
    return int(number) if number.isascii() and number.isdigit() else 0


def _kernel() -> str:
    """Identifies the kernel and the process namespace: under the same, a process id means the same process."""
    try:
        return f"{boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{boot_id()} {secrets.token_hex(8)}"  # no process of this machine can be recognised
