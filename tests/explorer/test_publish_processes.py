"""A publication by several processes ends with them, continues after them, and has the bytes of one process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnscope.cli.main import main
from attnscope.errors import SettingError
from attnscope.explorer.static_site import publish, worker_processes
from attnscope.explorer.static_site.plan import select_heads
from attnscope.explorer.static_site.publish import estimate, publish_trace
from attnscope.explorer.static_site.site_folder import SiteFolder
from attnscope.explorer.static_site.worker_processes import Task
from attnscope.recording import open_trace
from attnscope.recording.layers.recorded import Layer
from tests.explorer.test_static_site import mixed_trace, published, random_call, read_tree
from tests.survey.survey_process import command_line, descendants, is_running

TIMEOUT_SECONDS = 300.0
NUM_KILLS = 10
MORE_LAYERS = 4  # so that archives are left after all kills


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes") / "trace"
    found = mixed_trace()
    for number in range(MORE_LAYERS):
        name = f"more {number}"
        found.layers[name] = Layer(name, random_call(900 + number, 2, 1), cross=False)
    found.save(folder)
    return folder


@pytest.fixture(scope="module")
def whole(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the site that one process writes, with as many threads as the others: sums round alike."""
    with publish._threads(1):
        return read_tree(published(open_trace(trace), tmp_path_factory.mktemp("processes") / "site"))


def command(trace: Path, site: Path, workers: int) -> list[str]:
    arguments = ["publish", str(trace), "--name", "shown", "--out", str(site), "--workers", str(workers)]
    return [sys.executable, "-m", "attnscope.cli.main", *arguments]


@contextmanager
def running(trace: Path, site: Path, workers: int) -> Iterator[subprocess.Popen[str]]:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command(trace, site, workers), text=True, stderr=subprocess.PIPE, env=surroundings
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def records(site: Path) -> list[Path]:
    """The records of finished archives of an unfinished site."""
    return list(site.with_name(f"{site.name}.part").glob(".publish/L*.json"))


def workers_of(pid: int) -> list[int]:
    return [child for child in descendants(pid) if b"spawn_main" in command_line(child)]


def test_a_killed_worker_is_one_sentence_and_the_same_command_continues(
    trace: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    with running(trace, site, 2) as process:
        wait_until(lambda: records(site) or process.poll() is not None)
        first, *others = workers_of(process.pid)
        os.kill(first, signal.SIGKILL)
        printed = process.communicate(timeout=TIMEOUT_SECONDS)[1]
    assert process.returncode == 2, printed
    assert printed.splitlines()[-1] == f"attnscope: {publish.KILLED}"
    assert "Traceback" not in printed
    assert not any(map(is_running, others))
    before = {path.name: path.stat().st_mtime_ns for path in records(site)}
    assert before
    archives = {path: path.stat().st_mtime_ns for path in site.with_name("site.part").glob("*/L*/*.bin")}
    done = subprocess.run(command(trace, site, 2), check=True, capture_output=True, text=True)
    assert f"publish: continuing the unfinished site in {site}.part" in done.stderr.splitlines()
    assert read_tree(site) == whole
    kept = [site / path.relative_to(f"{site}.part") for path in archives]
    assert sum(path.stat().st_mtime_ns in archives.values() for path in kept) >= len(before)


def test_workers_end_with_the_process_that_started_them(trace: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with running(trace, site, 2) as process:
        wait_until(lambda: records(site) or process.poll() is not None)
        started = workers_of(process.pid)
    assert len(started) == 2
    wait_until(lambda: not any(map(is_running, started)))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_ends_at_once_and_keeps_what_is_finished(trace: Path, tmp_path: Path, workers: int) -> None:
    site = tmp_path / "site"
    with running(trace, site, workers) as process:
        wait_until(lambda: records(site) or process.poll() is not None)
        started = workers_of(process.pid)
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=TIMEOUT_SECONDS)[1]
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert (len(started), any(map(is_running, started))) == (0 if workers == 1 else 2, False)
    assert printed.splitlines()[-2] == f"publish: stopped; the same command continues in {site}.part"
    found = open_trace(trace)
    assert 1 <= len(records(site)) < len(select_heads(found, [])) + len(found)


def test_workers_divide_the_estimated_time(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_trace(trace)
    heads = select_heads(found, [])
    monkeypatch.setattr(publish, "num_cores", lambda: 8)
    monkeypatch.setattr(publish.timeit, "repeat", lambda *_, **__: [2.0, 1.0, 3.0])
    seconds = {workers: estimate(found, heads, workers=workers).seconds for workers in (1, 2, 8, 100)}
    assert seconds[1] == pytest.approx(2 * seconds[2]) == pytest.approx(8 * seconds[8])
    assert seconds[100] == seconds[8]  # there are not more cores
    assert estimate(found, heads[:3], workers=8).seconds == pytest.approx(estimate(found, heads[:3]).seconds / 3)


def test_several_workers_need_a_saved_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    found = mixed_trace()
    with pytest.raises(SettingError, match="several workers open the trace from its folder"):
        publish_trace(found, tmp_path / "site", select_heads(found, []), workers=2)
    assert main(["publish", str(trace), "--workers", "0", "--out", str(tmp_path / "site")]) == 2
    assert "expected at least 1 worker, got 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_trace_that_is_not_the_published_one_is_refused(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(trace, "0" * 32, "shown", SiteFolder(tmp_path, tmp_path), threads=1)
    monkeypatch.setattr(worker_processes._Process, "task", task, raising=False)
    with pytest.raises(SettingError, match="is not the one that is published"):
        worker_processes._Process.get_writer()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_site_that_was_killed_ten_times_has_the_same_bytes(
    workers: int, trace: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """Some kills are while the processes start, the others after another archive is finished."""
    site, chance = tmp_path / "site", random.Random(0)
    for number in range(NUM_KILLS):
        before = len(records(site))
        waits = number % 3 > 0
        with running(trace, site, workers) as process:
            if waits:
                wait_until(lambda before=before: len(records(site)) > before)
            elif workers > 1:
                wait_until(lambda pid=process.pid: workers_of(pid))
            time.sleep(chance.uniform(0, 0.1))
            assert process.poll() is None
            started = workers_of(process.pid)
        wait_until(lambda started=started: not any(map(is_running, started)))
        assert len(records(site)) >= before + waits  # a finished archive stays
    subprocess.run(command(trace, site, workers), check=True, capture_output=True)
    assert read_tree(site) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
