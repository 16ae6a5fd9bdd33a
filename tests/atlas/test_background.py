"""Work in the background is done one piece at a time, newest first, can be stopped, and gives way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from attnscope.atlas import background
from attnscope.atlas.background import ForegroundLock, Job, Worker
from attnscope.errors import Cancelled


class Gate:
    """Work that stands still until it is let through."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def __call__(self, progress: Callable[[float], object], cancelled: Callable[[], bool]) -> bool:
        progress(0.5)
        self.begun.set()
        assert self.open.wait(10)
        if cancelled():
            raise Cancelled("stopped")
        return True


def noting(done: list[str], name: str) -> Callable[..., bool]:
    """Work of one step that writes its name down."""
    return lambda *_: done.append(name) is None


def test_the_job_asked_for_last_is_done_first() -> None:
    worker, lock, gate, done = Worker(), ForegroundLock(), Gate(), []
    first = Job(gate, lock)
    jobs = [Job(noting(done, name), lock) for name in "abc"]
    worker.submit(first)
    assert gate.begun.wait(10)
    for job in (*jobs, jobs[0], first):  # somebody asks for the first of them again
        worker.submit(job)
    gate.open.set()
    assert all(job.finished.wait(10) for job in jobs)
    assert done == ["a", "c", "b"]
    worker.submit(jobs[1])
    assert [job.progress for job in (first, *jobs)] == [1.0] * 4
    assert done == ["a", "c", "b"]


def test_a_newer_job_goes_ahead_between_the_steps_of_an_older_one() -> None:
    worker, lock, done = Worker(), ForegroundLock(), []
    begun, go_on = threading.Event(), threading.Event()

    def long(*_: object) -> bool:
        begun.set()
        assert go_on.wait(10)
        done.append("step")
        return done.count("step") == 3

    older, newer = Job(long, lock), Job(noting(done, "newer"), lock)
    worker.submit(older)
    assert begun.wait(10)
    worker.submit(newer)
    go_on.set()
    assert older.finished.wait(10)
    assert done == ["step", "newer", "step", "step"]


def test_two_jobs_are_never_done_at_once() -> None:
    worker, lock, running, most = Worker(), ForegroundLock(), [], []

    def work(*_: object) -> bool:
        running.append(None)
        most.append(len(running))
        threading.Event().wait(0.002)
        return running.pop() is None

    jobs = [Job(work, lock) for _ in range(20)]
    threads = [threading.Thread(target=worker.submit, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    assert all(job.finished.wait(10) for job in jobs)
    assert most == [1] * 20


def test_a_stopped_job_ends_at_its_next_step_and_a_waiting_one_does_not_begin() -> None:
    worker, lock, gate, done = Worker(), ForegroundLock(), Gate(), []
    running, waiting, never = Job(gate, lock), Job(noting(done, "waiting"), lock), Job(gate, lock)
    assert running.progress is None
    worker.submit(running)
    assert gate.begun.wait(10)
    worker.submit(waiting)
    assert (running.progress, waiting.progress) == (0.5, 0.0)
    for job in (waiting, never):
        worker.cancel(job)
    stopping = threading.Thread(target=worker.cancel, args=(running,))
    stopping.start()
    stopping.join(0.1)
    assert stopping.is_alive()  # until the job stands still
    gate.open.set()
    stopping.join(10)
    assert running.finished.is_set()
    worker.submit(waiting)
    after = Job(noting(done, "after"), lock)
    worker.submit(after)
    assert after.finished.wait(10)
    assert done == ["after"]
    for job in (running, waiting, never):
        assert isinstance(job.error, Cancelled)
        assert (job.succeeded, job.progress) == (False, None)


def test_an_error_ends_a_job_and_not_the_worker() -> None:
    worker, lock = Worker(), ForegroundLock()

    def fail(*_: object) -> bool:
        raise MemoryError("too large")

    wrong, right = Job(fail, lock), Job(lambda *_: True, lock)
    for job in (wrong, right):
        worker.submit(job)
        assert job.finished.wait(10)
    assert isinstance(wrong.error, MemoryError)
    assert (wrong.progress, right.progress) == (None, 1.0)


def test_the_background_stands_still_while_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_PAUSE_SECONDS", 10.0)
    lock, passed = ForegroundLock(), threading.Event()
    thread = threading.Thread(target=lambda: (lock.give_way(), passed.set()))
    with lock.hold():
        thread.start()
        assert not passed.wait(0.1)
    assert passed.wait(5)


def test_the_background_does_not_stand_still_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_PAUSE_SECONDS", 0.01)
    lock = ForegroundLock()
    with lock.hold():
        lock.give_way()


def test_the_background_stands_still_for_a_while_after_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_PAUSE_SECONDS", 10.0)
    lock = ForegroundLock()

    def paused(quiet_seconds: float) -> float:
        start = time.monotonic()
        lock.give_way(quiet_seconds)
        return time.monotonic() - start

    assert paused(0.2) < 0.1  # nothing was requested
    lock.note_request()
    assert paused(0.0) < 0.1
    assert paused(0.2) >= 0.1
    assert paused(0.2) < 0.1
    lock.note_request()
    monkeypatch.setattr(background, "MAX_PAUSE_SECONDS", 0.01)
    assert paused(10.0) < 5  # but not for ever


def test_those_who_wait_compute_one_after_the_other() -> None:
    lock, inside, most = ForegroundLock(), [], []

    def ask() -> None:
        with lock.hold():
            inside.append(None)
            most.append(len(inside))
            threading.Event().wait(0.002)
            inside.pop()

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1] * 10
