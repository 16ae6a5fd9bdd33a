"""What our loop costs compared with a minimal one."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnscope.bench import Size
from benchmarks.__main__ import run
from benchmarks.train import MIN_SPEED, race_loops

ROUNDS = 5


@pytest.mark.slow
def test_the_benchmark_prints_both_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Size, "choose", lambda size, *, small, full: 4 if full is None else (1, 10))
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 400)
    speeds, learning = run("train", data=[str(text)], report=str(tmp_path / "report.md"))
    assert speeds.columns[:2] == ("minimal loop", "attnscope train")
    assert learning.rows[0][0] == "4"
    report = (tmp_path / "report.md").read_text()
    assert "`python -m benchmarks train --size small --data text.txt`" in report


@pytest.mark.timed
def test_the_loop_is_as_fast_as_a_minimal_one():
    """Tokens per second, best of several alternating rounds."""
    best = {"minimal": 0.0, "attnscope": 0.0}
    for _ in range(ROUNDS):
        found = race_loops(1, 30, lambda _: None)
        best = {name: max(best[name], found[name]) for name in best}
        if best["attnscope"] >= MIN_SPEED * best["minimal"]:
            break
    assert best["attnscope"] >= MIN_SPEED * best["minimal"], best
