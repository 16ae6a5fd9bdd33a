"""Background jobs: one step at a time in this process, newest job first, with priority for foreground work.

In: jobs. Out: their state. Two long computations at once would compete for the same CPU cores, so one daemon thread
runs all jobs, and it pauses while a request computes in the foreground. Does not know: what the jobs compute.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnscope.errors import Cancelled

MAX_PAUSE_SECONDS = 0.25  # per step of the background, so that it cannot starve
NICENESS = 10  # of work for which nobody waits at the screen


class ForegroundLock:
    """Foreground work runs one at a time, and background work pauses meanwhile, for a limited time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_waiting = 0
        self._requested_at = -math.inf
        self._computing = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock during foreground work."""
        with self._changed:
            self._num_waiting += 1
        try:
            with self._computing:
                yield
        finally:
            with self._changed:
                self._num_waiting -= 1
                self._changed.notify_all()

    def note_request(self) -> None:
        """Note that a viewer requests something, and will draw it on the same CPU cores."""
        self._requested_at = time.monotonic()

    def give_way(self, quiet_seconds: float = 0.0) -> None:
        """Pause while foreground work runs; called by background work between its steps.

        Args:
            quiet_seconds: Pause for this long after a request, too.
        """
        end = time.monotonic() + MAX_PAUSE_SECONDS
        with self._changed:
            self._changed.wait_for(lambda: not self._num_waiting, MAX_PAUSE_SECONDS)
        time.sleep(max(0.0, min(end, self._requested_at + quiet_seconds) - time.monotonic()))


class Job:
    """Work in steps, with progress and cancellation; a `Worker` runs it.

    Args:
        run_step: `run_step(report_progress, should_stop)` does one step and returns whether the job is done.
        foreground: The work that has priority.
        quiet_seconds: How long the job pauses after a request.
    """

    def __init__(
        self,
        run_step: Callable[[Callable[[float], object], Callable[[], bool]], bool],
        foreground: ForegroundLock,
        *,
        quiet_seconds: float = 0.0,
    ) -> None:
        self._run_step, self._foreground, self._quiet_seconds = run_step, foreground, quiet_seconds
        self._share = 0.0
        self.submitted, self.cancelled = False, False
        self.error: BaseException | None = None
        self.finished = threading.Event()

    @property
    def succeeded(self) -> bool:
        """Whether the job finished without an error."""
        return self.finished.is_set() and self.error is None

    @property
    def progress(self) -> float | None:
        """The finished share, or None if the job was not submitted, failed or was cancelled."""
        if self.succeeded:
            return 1.0
        return None if self.cancelled or self.error is not None or not self.submitted else self._share

    def step(self, *, give_way: bool = True) -> None:
        """Run one step in this thread; without `give_way` if this thread holds the foreground lock."""
        try:
            if self.cancelled:
                raise Cancelled("the job was cancelled")
            done = self._run_step(self._report, self._pause if give_way else lambda: self.cancelled)
        except BaseException as error:
            self.error, done = error, True
        if done:
            self.finished.set()

    def _report(self, share: float) -> None:
        self._share = share

    def _pause(self) -> bool:
        self._foreground.give_way(self._quiet_seconds)
        return self.cancelled


class Worker:
    """One thread that runs jobs, always a step of the newest; it starts with the first job."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: dict[Job, None] = {}
        self._current: Job | None = None
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        """Put a job first in the queue, unless it has finished or was cancelled."""
        with self._changed:
            if job.cancelled or job.finished.is_set():
                return
            job.submitted = True
            self._queue.pop(job, None)
            self._queue[job] = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="attnscope-atlas", daemon=True)
                self._thread.start()
                atexit.register(self._shut_down)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Cancel a job, and wait until it has stopped."""
        with self._changed:
            job.cancelled = True
            if job is not self._current:
                self._queue.pop(job, None)
                job.step()  # marks it as finished
        job.finished.wait()

    def _run(self) -> None:
        lower_priority(NICENESS)
        while True:
            with self._changed:
                self._current = None
                self._changed.wait_for(lambda: self._queue)
                self._current = job = next(reversed(self._queue))
            job.step()
            if job.finished.is_set():
                with self._changed:
                    self._queue.pop(job, None)
            del job  # frees its memory while the thread waits

    def _shut_down(self) -> None:
        """Cancel all jobs at exit: a thread that is killed inside torch crashes the process."""
        while self._queue:
            self.cancel(next(reversed(self._queue)))


def lower_priority(niceness: int) -> None:
    """Let other threads, and a browser on this machine, run before this thread and those that it starts."""
    if sys.platform == "linux":  # elsewhere a priority is that of the whole process
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
