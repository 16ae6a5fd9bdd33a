"""What our loop costs beside the plainest one."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnscope.bench import run
from attnscope.bench.train import MIN_SPEED, Size, race_loops

ROUNDS = 5


@pytest.mark.slow
def test_the_benchmark_prints_both_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("attnscope.bench.train.SIZES", {"small": Size(rounds=1, steps=10, learning_steps=4)})
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 400)
    speeds, learning = run("train", data=[str(text)], report=str(tmp_path / "report.md"))
    assert speeds.columns[:2] == ("plain loop", "attnscope train")
    assert learning.rows[0][0] == "4"
    report = (tmp_path / "report.md").read_text()
    assert "`attnscope bench train --size small --data text.txt`" in report


@pytest.mark.timed
def test_the_loop_is_as_fast_as_the_plainest_one():
    """Tokens a second, best of several rounds in turns."""
    best = {"plain": 0.0, "attnscope": 0.0}
    for _ in range(ROUNDS):
        found = race_loops(1, 30, lambda _: None)
        best = {name: max(best[name], found[name]) for name in best}
        if best["attnscope"] >= MIN_SPEED * best["plain"]:
            break
    assert best["attnscope"] >= MIN_SPEED * best["plain"], best
