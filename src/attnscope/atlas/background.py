"""Long work in the background: one step at a time in this process, newest first, giving way to whoever waits.

In: jobs. Out: their state. Two long computations at once would take each other's processor cores, so there is one
daemon thread for all of them; and what somebody waits for goes before it. Does not know: what the work is.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnscope.errors import Cancelled

PATIENCE = 0.25  # seconds that the background stands still at a time for those who wait


class Turns:
    """Whoever waits for an answer computes alone; the background stands still meanwhile, but not for ever."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asking = 0
        self._computing = threading.Lock()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """For work that somebody waits for."""
        with self._changed:
            self._asking += 1
        try:
            with self._computing:
                yield
        finally:
            with self._changed:
                self._asking -= 1
                self._changed.notify_all()

    def give_way(self) -> None:
        """For work in the background, between its steps."""
        with self._changed:
            self._changed.wait_for(lambda: not self._asking, PATIENCE)


class Job:
    """Work in steps that reports how far it is and can be stopped within a step; a worker does it.

    `work` does one step, is given a function that hears the share done and one that says whether to stop, and returns
    whether all is done.
    """

    def __init__(self, work: Callable[[Callable[[float], object], Callable[[], bool]], bool], turns: Turns) -> None:
        self._work, self._turns = work, turns
        self._share = 0.0
        self.asked, self.stopped = False, False
        self.error: BaseException | None = None
        self.finished = threading.Event()

    @property
    def done(self) -> bool:
        """Whether all of it is done."""
        return self.finished.is_set() and self.error is None

    @property
    def progress(self) -> float | None:
        """The share that is done; None if nobody has asked for it, or it will not be done."""
        if self.done:
            return 1.0
        return None if self.stopped or self.error is not None or not self.asked else self._share

    def advance(self, *, giving_way: bool = True) -> None:
        """Do one step, in this thread; who waits for it does not give way, least of all to itself."""
        try:
            if self.stopped:
                raise Cancelled("the work was stopped before it was done")
            done = self._work(self._report, self._pause if giving_way else lambda: self.stopped)
        except BaseException as error:
            self.error, done = error, True
        if done:
            self.finished.set()

    def _report(self, share: float) -> None:
        self._share = share

    def _pause(self) -> bool:
        self._turns.give_way()
        return self.stopped


class Worker:
    """One thread that does jobs, always a step of the one asked for last; it begins with the first job."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Job, None] = {}
        self._current: Job | None = None
        self._thread: threading.Thread | None = None

    def ask(self, job: Job) -> None:
        """Put a job in front, unless it was stopped or has been done."""
        with self._changed:
            if job.stopped or job.finished.is_set():
                return
            job.asked = True
            self._waiting.pop(job, None)
            self._waiting[job] = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="attnscope-atlas", daemon=True)
                self._thread.start()
                atexit.register(self._end)
            self._changed.notify()

    def stop(self, job: Job) -> None:
        """Stop a job, and wait until it stands still."""
        with self._changed:
            job.stopped = True
            if job is not self._current:
                self._waiting.pop(job, None)
                job.advance()  # which ends it
        job.finished.wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._current = None
                self._changed.wait_for(lambda: self._waiting)
                self._current = job = next(reversed(self._waiting))
            job.advance()
            if job.finished.is_set():
                with self._changed:
                    self._waiting.pop(job, None)
            del job  # what it holds is let go of while the thread waits

    def _end(self) -> None:
        """Leave no work going on when the program ends: a thread that is torn out of torch takes the process along."""
        while self._waiting:
            self.stop(next(reversed(self._waiting)))
