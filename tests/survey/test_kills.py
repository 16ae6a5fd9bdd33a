"""Surveys whose workers and whose drivers are killed, at any moment, end with the same bytes."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from attnscope.survey import Workers, run_survey
from tests.survey.survey_process import (
    OPTIONS,
    SMALL,
    Command,
    command_line,
    contents,
    count_partials,
    is_running,
    write_model,
    write_text,
)

pytestmark = pytest.mark.slow

SHARDS, WORKERS = 90, 2
LIVES = (2, 3, 3)
"""Workers that are killed before the driver is, and in its last life, before it may come to its end: ten kills."""
ORPHANS = 90.0  # seconds in which all that a killed driver has started has to end: Ray's agents take one minute


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("corpus")
    return write_model(folder / "model"), write_text(folder / "text.txt", SHARDS * SMALL["shard_bytes"])


def kill_a_worker(run: Command, dice: random.Random) -> None:
    """At any moment of its work, which goes on without it."""
    run.reached(run.actors)
    time.sleep(dice.uniform(0.0, 0.2))
    victim = dice.choice(run.actors())
    os.kill(victim, signal.SIGKILL)
    run.reached(lambda: not is_running(victim))


def kill_the_driver(run: Command, dice: random.Random) -> list[int]:
    """At any moment of its work; the processes that it has started."""
    time.sleep(dice.uniform(0.0, 0.2))
    return run.killed()


def wait_for_partials(run: Command, number: int) -> None:
    """Until so many shards have been read, and the survey is not finished."""
    run.reached(lambda: count_partials(run.out) >= number)
    assert not (run.out / "manifest.json").exists()


def wait_for_end(started: list[int]) -> None:
    """Until processes that nobody waits for have ended by themselves."""
    deadline = time.monotonic() + ORPHANS
    while left := [pid for pid in started if is_running(pid)]:
        assert time.monotonic() < deadline, (
            f"these outlive their driver: {[command_line(pid).rstrip(bytes(1)) for pid in left]}"
        )
        time.sleep(0.1)


def test_ten_kills_of_workers_and_drivers_change_no_byte(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    dice, out, started = random.Random(20), tmp_path / "killed", list[int]()
    moments = iter(sorted(dice.sample(range(1, SHARDS - 8), sum(LIVES) + len(LIVES) - 1)))
    for life, workers_killed in enumerate(LIVES, start=1):
        with Command(*corpus, *OPTIONS, "--workers", str(WORKERS), out=out) as run:
            for _ in range(workers_killed):
                wait_for_partials(run, next(moments))
                kill_a_worker(run, dice)
            if life < len(LIVES):
                wait_for_partials(run, next(moments))
                started += kill_the_driver(run, dice)
            else:
                assert "resuming after" in run.succeeded()
    assert next(moments, None) is None
    run_survey(*corpus, tmp_path / "whole", workers=Workers(threads=1), **SMALL)
    found, expected = contents(out), contents(tmp_path / "whole")
    assert found.keys() == expected.keys()
    assert [name for name, content in found.items() if content != expected[name]] == []
    assert sum(name.endswith(".partial") for name in found) >= SHARDS - 1
    wait_for_end(started)


def test_ctrl_c_ends_all_processes_and_says_how_to_go_on(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    with Command(*corpus, *OPTIONS, "--workers", str(WORKERS), out=tmp_path / "out") as run:
        wait_for_partials(run, 5)
        started = run.descendants()
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 130
        assert "shards; the same command resumes it" in run.printed()
        assert "Traceback" not in run.printed()
    wait_for_end(started)
    assert 5 <= count_partials(tmp_path / "out") < SHARDS - 1
    with Command(*corpus, *OPTIONS, out=tmp_path / "out") as run:
        wait_for_partials(run, 20)
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 130
        assert "resuming after" in run.printed()
        assert "shards; the same command resumes it" in run.printed()
        assert "Traceback" not in run.printed()
