"""Decides which worker has which task: every task once, and again where a worker was lost or a machine fails.

In: tasks, which are shards to read and groups to merge, and what became of each attempt. Out: the next task of each
idle worker. When no task is left, idle workers get copies of tasks that take much longer than the others: results are
deterministic, so the first copy that finishes counts. Nodes that fail repeatedly are excluded.
Does not know: Ray, clocks, the content of a task. Memory: one entry per task and worker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from attnscope.errors import AttnScopeError

Task = TypeVar("Task", bound=Hashable)

MAX_FAILURES = 3
"""A node is excluded after so many failures in a row; a task that failed on so many nodes ends the survey."""
STRAGGLER_FACTOR = 2.0
"""A task is given to a second worker if it takes so many times the mean duration, while a worker is idle."""


@dataclass
class _Work(Generic[Task]):
    """One worker, and its task at the moment."""

    node: str
    task: Task | None = None
    since: float = 0.0


class ShardQueue(Generic[Task]):
    """The tasks that have not been finished yet, and the workers.

    >>> queue = ShardQueue(["first", "second"])
    >>> queue.add_worker(7, "node")
    >>> queue.assign(now=0.0)
    [(7, 'first')]
    >>> queue.finish(7, now=1.0), queue.num_left
    (True, 1)
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._pending = deque[Task](tasks)
        self._left = set(self._pending)
        self._workers: dict[int, _Work[Task]] = {}
        self._num_workers = Counter[Task]()  # of each task
        self._failures: dict[Task, set[str]] = {}  # of each task: the nodes
        self._in_a_row = Counter[str]()  # failures of each node since its last success
        self._seconds, self._finished = 0.0, 0
        self.excluded: dict[str, str] = {}
        """Nodes that get no more work, and the error of each."""

    @property
    def num_left(self) -> int:
        """The number of tasks that have not been finished."""
        return len(self._left)

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """Add tasks."""
        for task in tasks:
            self._pending.append(task)
            self._left.add(task)

    def add_worker(self, worker: int, node: str) -> None:
        """Add an idle worker."""
        self._workers[worker] = _Work(node)

    def remove_worker(self, worker: int) -> None:
        """Remove a worker that has died or is not used any more; another one gets its task."""
        if worker in self._workers:
            self._release(worker)
            del self._workers[worker]

    def assign(self, now: float) -> list[tuple[int, Task]]:
        """Give each idle worker a task, as far as there are some.

        Args:
            now: The time, in seconds of any clock.

        Returns:
            Pairs of a worker and its task.
        """
        idle = [worker for worker, work in self._workers.items() if work.task is None]
        nodes = {work.node for work in self._workers.values()}
        given, waiting = list[tuple[int, Task]](), list[int]()
        for worker in idle:
            if (task := self._pop_pending(self._workers[worker].node, nodes)) is None:
                waiting.append(worker)
            else:
                given.append((worker, task))
        if not self._pending:
            given += self._copy_stragglers(waiting, now)
        for worker, task in given:
            work = self._workers[worker]
            work.task, work.since = task, now
            self._num_workers[task] += 1
        return given

    def finish(self, worker: int, now: float) -> bool:
        """Record that a worker has finished its task.

        Returns:
            Whether it is the first to do so.
        """
        work = self._workers[worker]
        task, seconds = work.task, now - work.since
        assert task is not None
        is_first = task in self._left
        self._left.discard(task)
        self._in_a_row.pop(work.node, None)
        self._seconds, self._finished = self._seconds + seconds, self._finished + 1
        self._release(worker)
        return is_first

    def fail(self, worker: int, error: str, *, has_other_nodes: bool) -> str | None:
        """Record that the machine of a worker could not do its task, which is given to another node.

        Args:
            worker: The worker.
            error: What went wrong.
            has_other_nodes: Whether workers run, or may start, on nodes other than that of the worker.

        Returns:
            The node of the worker, if it is to be excluded now; see `exclude`.

        Raises:
            AttnScopeError: With `error`, if there is no other node, or the task failed on several.
        """
        work = self._workers[worker]
        task, node = work.task, work.node
        assert task is not None
        self._release(worker)
        if task not in self._left:
            return None  # a copy of it is finished
        failures = self._failures.setdefault(task, set())
        failures.add(node)
        self._in_a_row[node] += 1
        if not has_other_nodes or len(failures) >= MAX_FAILURES:
            raise AttnScopeError(error)
        return node if self._in_a_row[node] >= MAX_FAILURES else None

    def exclude(self, node: str, error: str) -> list[int]:
        """Give no more work to a node.

        Returns:
            Its workers, which are removed.
        """
        self.excluded[node] = error
        workers = [worker for worker, work in self._workers.items() if work.node == node]
        for worker in workers:
            self.remove_worker(worker)
        return workers

    def _pop_pending(self, node: str, nodes: set[str]) -> Task | None:
        """The next task that has not failed on a node, or that has failed on all nodes with workers."""
        for at, task in enumerate(self._pending):
            failed = self._failures.get(task, set[str]())
            if node not in failed or nodes <= failed:
                del self._pending[at]
                return task
        return None

    def _copy_stragglers(self, idle: list[int], now: float) -> list[tuple[int, Task]]:
        """Give idle workers the slowest tasks that only one worker has, best on another node."""
        if not idle or not self._finished:
            return []
        latest = now - STRAGGLER_FACTOR * self._seconds / self._finished
        slow = [
            work
            for work in self._workers.values()
            if work.task is not None
            and work.since < latest
            and work.task in self._left
            and self._num_workers[work.task] == 1
        ]
        given = list[tuple[int, Task]]()
        for work in sorted(slow, key=lambda work: work.since)[: len(idle)]:
            chosen = next((worker for worker in idle if self._workers[worker].node != work.node), idle[0])
            idle.remove(chosen)
            assert work.task is not None
            given.append((chosen, work.task))
        return given

    def _release(self, worker: int) -> None:
        """Make a worker idle; its task is pending again unless it is finished or another worker has it."""
        work = self._workers[worker]
        task, work.task = work.task, None
        if task is None:
            return
        self._num_workers[task] -= 1
        if self._num_workers[task]:
            return
        del self._num_workers[task]
        if task in self._left:
            self._pending.appendleft(task)
