"""One measurement in a process of its own, which is ended when it takes more memory or time than it may.

In: a command that ends with one line of JSON. Out: that line, or why there is none. Linux only: it reads /proc.

A limit of the kernel on address space would end most libraries long before their memory is used, since they reserve
far more than they touch. So somebody watches instead: every few hundredths of a second, what the process and all that
it has started hold for themselves is added up. Files that are mapped and memory that is shared do not count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from attnscope.errors import UnsupportedError

PAUSE = 0.03  # seconds between two looks
OUT_OF_MEMORY, TOO_LONG = "out of memory", "too long"
NO_ROOM = ("MemoryError", "can't allocate memory", "Cannot allocate memory", "out of memory")
"""What programs say that have asked for memory and not got it."""


class Outcome(NamedTuple):
    """What came of a measurement."""

    answer: dict[str, Any] | None
    stopped: str
    """Why there is no answer; empty if there is one."""
    peak: int
    """The most bytes that its processes were seen to hold for themselves at one time."""


def run_capped(
    command: Sequence[str], *, memory: float, seconds: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command until it answers, or holds more than `memory` bytes, or has taken as many `seconds`.

    >>> import sys
    >>> run_capped([sys.executable, "-c", "print('{}')"], memory=1e9, seconds=60).answer
    {}
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise UnsupportedError("peers: they are watched through /proc, which this system does not have; use Linux")
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        try:
            stopped, peak = _watch(process, memory, seconds)
        finally:
            _end(process)
        output.seek(0)
        errors.seek(0)
        answer = None if stopped else _answer(output.read())
        if answer is None and not stopped:
            stopped = _reason(process.returncode, errors.read())
    return Outcome(answer, stopped, peak)


def _watch(process: subprocess.Popen, memory: float, seconds: float) -> tuple[str, int]:
    """Why the process has to be ended, or nothing when it has ended by itself; and the peak of all of it."""
    start, peak = time.monotonic(), 0
    while process.poll() is None:
        held = sum(map(private_bytes, family(process.pid)))
        peak = max(peak, held)
        if held > memory:
            return OUT_OF_MEMORY, peak
        if time.monotonic() - start > seconds:
            return TOO_LONG, peak
        time.sleep(PAUSE)
    return "", peak


def family(process: int) -> list[int]:
    """A process and all that it has started, directly or not, as far as they are alive."""
    found = [process]
    for one in found:  # grows as it is walked
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
        except OSError:  # it has ended in the meantime
            continue
        found += map(int, children)
    return found


def private_bytes(process: int) -> int:
    """What a process holds that is neither of a file nor shared; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _end(process: subprocess.Popen) -> None:
    """End a process and all that it has started, and wait until their memory is free again."""
    everyone = family(process.pid) if process.poll() is None else []
    for one in reversed(everyone):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()
    while any(map(_alive, everyone)):
        time.sleep(PAUSE)


def _alive(process: int) -> bool:
    """Whether a process is there, and not merely waiting for somebody to ask how it ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _answer(output: str) -> dict[str, Any] | None:
    """The last line that is JSON: libraries like to talk."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def _reason(code: int, errors: str) -> str:
    """Why a process that has ended by itself has no answer."""
    if code == -signal.SIGKILL or any(words in errors for words in NO_ROOM):
        return OUT_OF_MEMORY
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return f"failed: {lines[-1][:160] if lines else f'it ended with {code} and said nothing'}"
