"""A layer under Python's file functions that counts operations, and disturbs one of them.

`install` replaces `open` and some functions of `os` in this process. Operations on files in the watched folders are
counted, and at one of them something happens: the operation fails, the process gets a signal, a folder disappears, the
clock jumps, or the process waits. Files that C++ code opens itself are not seen.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

SECONDS_PER_DAY = 86_400.0
PAUSE_SECONDS = 0.5
"""How long a process that announced an operation waits, so that another one meets it at work."""
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}


@dataclass(frozen=True)
class Disturbance:
    """What happens at which operation."""

    action: str
    """A key of `ERRORS` or `SIGNALS`, or `rename`, `clock` or `announce`."""
    operation: int
    """The number of the operation, from 1."""
    lasting: bool = False
    """Whether all later operations fail, too."""
    delay: float = 0.0
    """Seconds from the operation to the signal."""
    path: str = ""
    """The folder that disappears, or the file that announces the operation."""
    days: float = 0.0
    """By how much the clock jumps."""


class FileLayer:
    """Counts operations, and disturbs one of them.

    Args:
        folders: Operations inside these folders count.
        disturbance: What happens at which operation; None only counts.
    """

    def __init__(self, folders: Sequence[Path], disturbance: Disturbance | None = None) -> None:
        self.folders = [f"{os.path.abspath(folder)}{os.sep}" for folder in folders]
        self.disturbance = disturbance
        self.operations = 0
        self._lock = threading.Lock()

    def watches(self, file: Any) -> bool:
        """Whether a path, or an open descriptor, is in one of the folders."""
        try:
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.path.abspath(os.fsdecode(file))
        except (OSError, TypeError):
            return False
        return any(f"{path}{os.sep}".startswith(folder) for folder in self.folders)

    def step(self, *, writes: bool, first_half: Callable[[], object] | None = None) -> None:
        """Count an operation, and disturb it if it is its turn.

        Args:
            writes: Whether the operation needs space on the disk.
            first_half: Does a part of the operation, as when the power fails in the middle of it.
        """
        with self._lock:
            self.operations += 1
            number, wanted = self.operations, self.disturbance
        if wanted is None or number < wanted.operation or (number > wanted.operation and not wanted.lasting):
            return
        if wanted.action == "ENOSPC" and not writes:
            return
        if first_half is not None and wanted.action in {*ERRORS, "SIGKILL"} and not wanted.delay:
            first_half()
        self._disturb(wanted)

    def _disturb(self, wanted: Disturbance) -> None:
        if wanted.action in ERRORS:
            raise OSError(ERRORS[wanted.action], os.strerror(ERRORS[wanted.action]))
        if wanted.action in SIGNALS:
            self._send(SIGNALS[wanted.action], wanted.delay)
        elif wanted.action == "rename":
            os.rename(wanted.path, away(wanted.path))
        elif wanted.action == "clock":
            shift_clock(wanted.days)
        elif wanted.action == "announce":
            Path(wanted.path).touch()
            time.sleep(PAUSE_SECONDS)
        else:
            _refuse(wanted.action)

    @staticmethod
    def _send(number: int, delay: float) -> None:
        if not delay:
            os.kill(os.getpid(), number)
            return
        timer = threading.Timer(delay, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    def install(self) -> None:
        """Replace the functions in this process."""
        original = io.open

        def open_watched(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
            newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            if isinstance(file, int) or not self.watches(file):
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
            self.step(writes=mode[:1] != "r")
            raw = WatchedFile(self, file, "".join(letter for letter in mode if letter in "rwxa+"), opener=opener)
            if buffering == 0:
                return raw
            kind = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
            buffered = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
            if "b" in mode:
                return buffered
            text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
            text.mode = mode  # pyright: ignore[reportAttributeAccessIssue] - as `open` does
            return text

        builtins.open = io.open = open_watched
        for name, writes in {"fsync": True, "replace": False, "rename": False, "mkdir": True}.items():
            setattr(os, name, self._counted(getattr(os, name), writes))

    def _counted(self, function: Callable[..., Any], writes: bool) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **named: Any) -> Any:
            if self.watches(path):
                self.step(writes=writes)
            return function(path, *arguments, **named)

        return call


class WatchedFile(io.FileIO):
    """An open file whose reads and writes count as operations."""

    def __init__(self, layer: FileLayer, file: Any, mode: str, *, opener: Any) -> None:
        self._layer = layer
        super().__init__(file, mode, opener=opener)

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer."""
        self._layer.step(writes=False)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        """Read to the end."""
        self._layer.step(writes=False)
        return super().readall()

    def write(self, content: Any, /) -> int:
        """Write; a disturbed write leaves the first half in the file."""
        view = memoryview(content).cast("B")
        self._layer.step(writes=True, first_half=lambda: super(WatchedFile, self).write(view[: len(view) // 2]))
        return super().write(view)


def away(path: str | Path) -> str:
    """The name that a folder has while it is not at its place."""
    return f"{path}.away"


def shift_clock(days: float) -> None:
    """Let `time.time` and `time.time_ns` jump by some days from now on."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + days * SECONDS_PER_DAY
    time.time_ns = lambda: nanoseconds() + round(days * SECONDS_PER_DAY * 1e9)


def _refuse(action: str) -> NoReturn:
    raise ValueError(f"unknown action {action!r}")
