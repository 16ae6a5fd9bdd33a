"""Checks an answer in a separate process with a timeout, so endless loops and crashes become feedback.

The process gets a nonce on stdin and returns the feedback on a pipe, after the nonce. What the answer writes itself,
wherever it writes it, is not taken for feedback. This stops short cuts, not an attack: the answer and its check share
a process.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from attnscope.errors import SettingError
from attnscope.labs.exercise import Outcome, check_answer, exercise_name

TIMEOUT_SECONDS = 120.0
LAST_OUTPUT_SECONDS = 1.0
"""Output that is in the pipe when the process ends is there at once; a child process may hold the pipe open."""


def check_file(path: str | Path, seconds: float = TIMEOUT_SECONDS) -> Outcome:
    """Run the answer in a file in a separate process, and return the feedback.

    Args:
        path: The file.
        seconds: The timeout.

    Raises:
        SettingError: If the timeout is not positive, or the file names no exercise.
    """
    if not seconds > 0:
        raise SettingError(f"check: expected seconds above 0, got {seconds}")
    path = Path(path).resolve()
    name = exercise_name(path)
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        # -P: a file next to the answer, such as torch.py, must not be imported
        command = [sys.executable, "-P", "-m", "attnscope.labs.checking", str(path)]
        code, verdict = _run(command, errors.fileno(), seconds)
        errors.seek(0)
        last = errors.read().strip().rpartition("\n")[2]
    if code is None:
        message = (
            f"The answer was stopped after {seconds:g} seconds. Is there a loop that never ends, or a loop over "
            "single numbers that one tensor operation could replace?"
        )
        return Outcome(exercise=name, kind="it does not end", message=message)
    if verdict and code == 0:
        return Outcome(**json.loads(verdict))
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    message = f"Python itself ended ({how}) before the check was complete. Its last output was: {last or 'nothing'}"
    return Outcome(exercise=name, kind="Python ended", message=message)


def _run(command: list[str], errors: int, seconds: float) -> tuple[int | None, str]:
    """Return the exit code, or None after a timeout, and what was written after the nonce.

    Child processes of an answer that is stopped are stopped too.
    """
    nonce = secrets.token_hex(16)
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
    )
    assert child.stdin is not None and child.stdout is not None
    lines: list[bytes] = []
    reader = threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True)
    reader.start()
    try:
        child.stdin.write(f"{nonce}\n".encode())
        child.stdin.close()
        code = child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if child.poll() is None:
            _stop(child)
    reader.join(LAST_OUTPUT_SECONDS)
    verdicts = [line for line in lines if line.startswith(nonce.encode())]
    return code, verdicts[0].decode().removeprefix(nonce) if len(verdicts) == 1 else ""


def _read_lines(pipe: IO[bytes], lines: list[bytes]) -> None:
    with pipe:
        lines.extend(pipe)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _check_and_send(path: str) -> None:
    """Check an answer in this process: read the nonce, hide both ends, and write the feedback after the nonce."""
    nonce = sys.stdin.readline().strip()
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    outcome = check_answer(path)
    pipe.write(f"\n{nonce}{json.dumps(asdict(outcome))}\n")
    pipe.close()


if __name__ == "__main__":
    _check_and_send(*sys.argv[1:])
