"""Runs a command in a process with a memory limit and a timeout. Linux only: it reads /proc.

The limit is enforced by polling the private memory of the process and its children. A kernel limit on address space
would stop most libraries too early, because they reserve far more than they use. Mapped files and shared memory do not
count.
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

POLL_SECONDS = 0.03
OUT_OF_MEMORY, TOO_LONG = "out of memory", "too long"
MEMORY_ERRORS = ("MemoryError", "can't allocate memory", "Cannot allocate memory", "out of memory")
"""Messages of failed allocations."""


class Outcome(NamedTuple):
    """The outcome of a process."""

    answer: dict[str, Any] | None
    stopped: str
    """Why there is no answer; empty if there is one."""
    peak: int
    """The largest private memory of its processes, in bytes."""


def run_capped(
    command: Sequence[str], *, memory: float, seconds: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command that prints one line of JSON; stop it above `memory` bytes or after `seconds`.

    >>> import sys
    >>> run_capped([sys.executable, "-c", "print('{}')"], memory=1e9, seconds=60).answer
    {}
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise UnsupportedError("peers: measuring memory needs /proc/self/smaps_rollup; use Linux")
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        try:
            stopped, peak = _poll(process, memory, seconds)
        finally:
            _end(process)
        output.seek(0)
        errors.seek(0)
        answer = None if stopped else _answer(output.read())
        if answer is None and not stopped:
            stopped = _reason(process.returncode, errors.read())
    return Outcome(answer, stopped, peak)


def _poll(process: subprocess.Popen, memory: float, seconds: float) -> tuple[str, int]:
    """Return why the process must be stopped, empty if it ended by itself, and its peak memory."""
    start, peak = time.monotonic(), 0
    while process.poll() is None:
        held = sum(map(private_bytes, process_tree(process.pid)))
        peak = max(peak, held)
        if held > memory:
            return OUT_OF_MEMORY, peak
        if time.monotonic() - start > seconds:
            return TOO_LONG, peak
        time.sleep(POLL_SECONDS)
    return "", peak


def process_tree(process: int) -> list[int]:
    """Return a process and its living descendants."""
    found = [process]
    for one in found:  # grows as it is walked
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
        except OSError:  # it has ended
            continue
        found += map(int, children)
    return found


def private_bytes(process: int) -> int:
    """Return the private anonymous memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _end(process: subprocess.Popen) -> None:
    """Kill a process and its descendants, and wait until their memory is free."""
    processes = process_tree(process.pid) if process.poll() is None else []
    for one in reversed(processes):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()
    while any(map(_alive, processes)):
        time.sleep(POLL_SECONDS)


def _alive(process: int) -> bool:
    """Return whether a process is alive and not a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _answer(output: str) -> dict[str, Any] | None:
    """Return the last line that is JSON; libraries may print other lines."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def _reason(code: int, errors: str) -> str:
    """Return why a process ended without an answer."""
    if code == -signal.SIGKILL or any(words in errors for words in MEMORY_ERRORS):
        return OUT_OF_MEMORY
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return f"failed: {lines[-1][:160] if lines else f'exit code {code} without a message'}"
