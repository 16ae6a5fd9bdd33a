"""Commands in processes of their own, forked from one that has imported torch, which takes seconds.

Each process runs `attnscope ...` or a function, with a file layer beneath it, and writes its output to files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scripts.fault_injection.file_layer import Disturbance, FileLayer, shift_clock

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 180.0
"""After this time a process hangs; the longest takes a few seconds on an idle machine."""

forkserver = get_context("forkserver")
forkserver.set_forkserver_preload(["scripts.fault_injection.preload"])


@dataclass(frozen=True)
class Job:
    """A command, and where it runs."""

    command: Callable[..., int]
    """A function at the top of a module, which returns the exit code."""
    arguments: Sequence[str]
    folder: Path
    """The working directory."""
    watched: Sequence[Path]
    """Folders whose files the layer watches."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int | None
    """The exit code, negative for a signal; None if it did not end in time."""
    output: str
    errors: str
    operations: int
    """File operations in the watched folders; 0 if the process was killed."""

    @property
    def refused(self) -> bool:
        """Whether it ended by itself, with an error."""
        return self.code is not None and self.code > 0

    @property
    def has_traceback(self) -> bool:
        """Whether a traceback was printed."""
        return "Traceback (most recent call last)" in self.errors

    @property
    def has_sentence(self) -> bool:
        """Whether it printed one line that says what is wrong, or was interrupted."""
        return self.code == 130 or sum(line.startswith("attnscope: ") for line in self.errors.splitlines()) == 1


class Running:
    """A process at work."""

    def __init__(self, job: Job, logs: Path, disturbance: Disturbance | None = None, *, days: float = 0.0) -> None:
        self._logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self.process = forkserver.Process(target=_run, args=(job, logs, disturbance, days), daemon=True)
        self.process.start()

    def wait(self, timeout: float = TIMEOUT_SECONDS) -> Ended:
        """Wait for the end; a process that does not end in time is killed."""
        self.process.join(timeout)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        counted = self._logs / "operations"
        operations = int(counted.read_text(encoding="ascii")) if counted.exists() else 0
        output, errors = ((self._logs / name).read_text(encoding="utf-8", errors="replace") for name in STREAMS)
        return Ended(code, output, errors, operations)

    def wait_for(self, path: Path, timeout: float = TIMEOUT_SECONDS) -> None:
        """Wait until a file is there, or the process has ended."""
        deadline = time.monotonic() + timeout
        while not path.exists() and self.process.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.005)


STREAMS = ("stdout", "stderr")


def run(job: Job, logs: Path, disturbance: Disturbance | None = None) -> Ended:
    """Run a command to its end."""
    return Running(job, logs, disturbance).wait()


def attnscope(*words: str) -> int:
    """The command line."""
    from attnscope.cli.main import main

    return main(words)


def prepare_environment() -> None:
    """Set variables for processes that are started from now on: one thread each, and where the modules are."""
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _run(job: Job, logs: Path, disturbance: Disturbance | None, days: float) -> None:
    for descriptor, name in enumerate(STREAMS, start=1):
        os.dup2(os.open(logs / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    os.chdir(job.folder)
    layer = FileLayer(job.watched, disturbance)
    layer.install()
    if days:
        shift_clock(days)
    try:
        code = job.command(*job.arguments)
    finally:
        (logs / "operations").write_text(str(layer.operations), encoding="ascii")
    sys.exit(code)


def print_json(found: Any) -> int:
    """Print what a reader found; the exit code of success."""
    print(json.dumps(found, sort_keys=True))
    return 0
