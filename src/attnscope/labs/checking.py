"""An answer looked at from a safe distance: in a child process, for so many seconds at most.

In: a file. Out: an `Outcome`, also where the answer runs for ever, takes Python down or leaves through `sys.exit`.
Does not know: what the exercises ask. Memory: that of the child is the child's.
"""

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
from attnscope.labs.exercise import Outcome, exercise_of, judge

SECONDS = 120.0


def check_file(path: str | Path, seconds: float = SECONDS) -> Outcome:
    """Run the answer in a file in a process of its own, and say what is wrong with it."""
    if not seconds > 0:
        raise SettingError(f"check: seconds={seconds}; an answer takes some time, give it a number above 0")
    path = Path(path).resolve()
    name = exercise_of(path)
    with TemporaryDirectory() as folder:
        told = Path(folder) / "outcome.json"
        with (Path(folder) / "errors.txt").open("w+", encoding="utf-8", errors="replace") as errors:
            # -P: files beside the answer, maybe called torch.py, are nobody's modules
            command = [sys.executable, "-P", "-m", "attnscope.labs.checking", str(path), str(told)]
            code = _run(command, errors.fileno(), seconds)
            errors.seek(0)
            last = errors.read().strip().rpartition("\n")[2]
        if code is None:
            words = (
                f"After {seconds:g} seconds it was still running, and was stopped. Is there a loop that never comes to "
                "its end, or one over single numbers where a tensor operation would do all of them at once?"
            )
            return Outcome(exercise=name, kind="it does not end", words=words)
        if told.is_file() and code == 0:
            return Outcome(**json.loads(told.read_text(encoding="utf-8")))
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    words = f"Python itself ended ({how}) before the answer was looked at to the end. Last it said: {last or 'nothing'}"
    return Outcome(exercise=name, kind="Python ended", words=words)


def _run(command: list[str], errors: int, seconds: float) -> int | None:
    """The exit code, or None if the time was up; then whatever the answer started is stopped with it."""
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


def _judge_and_tell(path: str, told: str) -> None:
    Path(told).write_text(json.dumps(asdict(judge(path))), encoding="utf-8")


if __name__ == "__main__":
    _judge_and_tell(*sys.argv[1:])
