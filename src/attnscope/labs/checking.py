"""Checks an answer in a separate process with a timeout, so endless loops and crashes become feedback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from attnscope.errors import SettingError
from attnscope.labs.exercise import Outcome, check_answer, exercise_name

TIMEOUT_SECONDS = 120.0


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
    with TemporaryDirectory() as folder:
        result = Path(folder) / "outcome.json"
        with (Path(folder) / "errors.txt").open("w+", encoding="utf-8", errors="replace") as errors:
            # -P: a file next to the answer, such as torch.py, must not be imported
            command = [sys.executable, "-P", "-m", "attnscope.labs.checking", str(path), str(result)]
            code = _run(command, errors.fileno(), seconds)
            errors.seek(0)
            last = errors.read().strip().rpartition("\n")[2]
        if code is None:
            message = (
                f"The answer was stopped after {seconds:g} seconds. Is there a loop that never ends, or a loop over "
                "single numbers that one tensor operation could replace?"
            )
            return Outcome(exercise=name, kind="it does not end", message=message)
        if result.is_file() and code == 0:
            return Outcome(**json.loads(result.read_text(encoding="utf-8")))
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    message = f"Python itself ended ({how}) before the check was complete. Its last output was: {last or 'nothing'}"
    return Outcome(exercise=name, kind="Python ended", message=message)


def _run(command: list[str], errors: int, seconds: float) -> int | None:
    """Return the exit code, or None after a timeout; child processes of the answer are stopped too."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
    )
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _check_and_write(path: str, result: str) -> None:
    Path(result).write_text(json.dumps(asdict(check_answer(path))), encoding="utf-8")


if __name__ == "__main__":
    _check_and_write(*sys.argv[1:])
