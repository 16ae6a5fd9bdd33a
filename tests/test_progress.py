"""Progress where standard error is not a terminal: a line now and then, and nothing for what is quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from attnscope import progress
from attnscope.bench import present
from attnscope.bench.report import Table
from attnscope.progress import ProgressBar, report_progress, show_status


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress reads, as the only item of a list."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_piped_bar_prints_a_line_every_ten_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        task = bar.add_task("publishing", total=None)
        for done in range(1, 26):
            clock[0] += 1
            bar.update(task, completed=done, total=3000)
    assert capsys.readouterr() == ("", "publishing: 10 of 3,000\npublishing: 20 of 3,000\n")


def test_what_is_quick_prints_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with report_progress(True, "scoring") as report, show_status("bench matrix:") as step:
        clock[0] += progress.PLAIN_LINE_SECONDS - 1
        report(1, 2)
        step("sums")
    assert capsys.readouterr() == ("", "")


def test_progress_that_is_not_wanted_is_silent(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with report_progress(False, "scoring") as report:
        clock[0] += 60
        report(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_benchmark_says_what_it_measures(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    def tables(step: Callable[[str], None]) -> Iterator[Table]:
        clock[0] += 11
        step("sums of columns")
        yield from ()

    present("matrix", "attnscope bench matrix", tables)
    assert capsys.readouterr() == ("", "bench matrix: sums of columns\n")
