"""A run that is killed at any time and resumed from its checkpoint has the series of a run that was not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from attnscope.telemetry.alerts import LargeLogit
from attnscope.telemetry.run_log import ALERTS, STEPS
from attnscope.telemetry.watcher import Watch
from tests.telemetry.test_watcher import IDS, make_model

SAVE_EVERY = 4


def run(folder: Path, steps: int) -> None:
    """Train up to a number of steps, from the last checkpoint on if there is one."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    saved, done = folder / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        done = state["step"]
    with Watch(model, every=2, folder=folder / "run", rules=[LargeLogit(0.1)], step=done) as watch:
        for step in range(done + 1, steps + 1):
            model(IDS, labels=IDS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
            if step % SAVE_EVERY == 0:
                torch.save({"model": model.state_dict(), "step": step}, folder / "partial.pt")
                (folder / "partial.pt").replace(saved)


def kill_after(folder: Path, lines: int) -> None:
    """Kill a training process once it has logged some steps."""
    process = subprocess.Popen([sys.executable, "-m", "tests.telemetry.test_kills", str(folder)])
    log = folder / "run" / STEPS
    try:
        while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= lines):
            time.sleep(0.01)
        assert process.poll() is None, "the process ended before it was killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("lines", [2, 6])
def test_a_killed_run_resumes_without_gap_or_duplicate(tmp_path: Path, lines: int) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    kill_after(tmp_path / "killed", lines)
    saved = tmp_path / "killed" / "checkpoint.pt"
    steps = 8 + (torch.load(saved, weights_only=True)["step"] if saved.exists() else 0)
    run(tmp_path / "killed", steps)
    run(tmp_path / "whole", steps)
    for name in (STEPS, ALERTS):
        killed, whole = ((tmp_path / kind / "run" / name).read_bytes() for kind in ("killed", "whole"))
        assert killed == whole


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Path(sys.argv[1]), 10_000)
