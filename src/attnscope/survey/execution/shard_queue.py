"""Decides which worker reads which shard: every shard once, and again where a worker was lost or a machine fails.

In: shards, and what became of each attempt. Out: the next shard of each idle worker. When no shard is left, idle
workers read copies of shards that take much longer than the others: results are deterministic, so the first copy that
finishes counts. Nodes that fail repeatedly are excluded.
Does not know: Ray, clocks, the content of a shard. Memory: one entry per shard and worker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from attnscope.errors import AttnScopeError
from attnscope.survey.corpus.plan import Shard

MAX_FAILURES = 3
"""A node is excluded after so many failures in a row; a shard that failed on so many nodes ends the survey."""
STRAGGLER_FACTOR = 2.0
"""A shard is read a second time if it takes so many times the mean duration, while a worker is idle."""


@dataclass
class _Work:
    """One worker, and what it reads at the moment."""

    node: str
    shard: Shard | None = None
    since: float = 0.0


class ShardQueue:
    """The shards that have not been read yet, and the workers that read them.

    >>> queue = ShardQueue([Shard(0, ()), Shard(1, ())])
    >>> queue.add_worker(7, "node")
    >>> [(worker, shard.number) for worker, shard in queue.assign(now=0.0)]
    [(7, 0)]
    >>> queue.finish(7, now=1.0), queue.num_left
    (True, 1)
    """

    def __init__(self, shards: Iterable[Shard] = ()) -> None:
        self._pending = deque(shards)
        self._left = {shard.number for shard in self._pending}
        self._workers: dict[int, _Work] = {}
        self._readers = Counter[int]()  # of each shard
        self._failures: dict[int, set[str]] = {}  # of each shard: the nodes
        self._in_a_row = Counter[str]()  # failures of each node since its last success
        self._seconds, self._finished = 0.0, 0
        self.excluded: dict[str, str] = {}
        """Nodes that get no more work, and the error of each."""

    @property
    def num_left(self) -> int:
        """The number of shards that have not been read."""
        return len(self._left)

    def add_shards(self, shards: Iterable[Shard]) -> None:
        """Add shards to read."""
        for shard in shards:
            self._pending.append(shard)
            self._left.add(shard.number)

    def add_worker(self, worker: int, node: str) -> None:
        """Add an idle worker."""
        self._workers[worker] = _Work(node)

    def remove_worker(self, worker: int) -> None:
        """Remove a worker that has died or is not used any more; its shard is read by another one."""
        if worker in self._workers:
            self._release(worker)
            del self._workers[worker]

    def assign(self, now: float) -> list[tuple[int, Shard]]:
        """Give each idle worker a shard, as far as there are some.

        Args:
            now: The time, in seconds of any clock.

        Returns:
            Pairs of a worker and the shard that it is to read.
        """
        idle = [worker for worker, work in self._workers.items() if work.shard is None]
        nodes = {work.node for work in self._workers.values()}
        given, waiting = list[tuple[int, Shard]](), list[int]()
        for worker in idle:
            if (shard := self._pop_pending(self._workers[worker].node, nodes)) is None:
                waiting.append(worker)
            else:
                given.append((worker, shard))
        if not self._pending:
            given += self._copy_stragglers(waiting, now)
        for worker, shard in given:
            work = self._workers[worker]
            work.shard, work.since = shard, now
            self._readers[shard.number] += 1
        return given

    def finish(self, worker: int, now: float) -> bool:
        """Record that a worker has read its shard.

        Returns:
            Whether it is the first to do so.
        """
        work = self._workers[worker]
        shard, seconds = work.shard, now - work.since
        assert shard is not None
        is_first = shard.number in self._left
        self._left.discard(shard.number)
        self._in_a_row.pop(work.node, None)
        self._seconds, self._finished = self._seconds + seconds, self._finished + 1
        self._release(worker)
        return is_first

    def fail(self, worker: int, error: str, *, has_other_nodes: bool) -> str | None:
        """Record that the machine of a worker could not read its shard, which is given to another node.

        Args:
            worker: The worker.
            error: What went wrong.
            has_other_nodes: Whether workers run, or may start, on nodes other than that of the worker.

        Returns:
            The node of the worker, if it is to be excluded now; see `exclude`.

        Raises:
            AttnScopeError: With `error`, if there is no other node, or the shard failed on several.
        """
        work = self._workers[worker]
        shard, node = work.shard, work.node
        assert shard is not None
        self._release(worker)
        if shard.number not in self._left:
            return None  # a copy of it has been read
        failures = self._failures.setdefault(shard.number, set())
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

    def _pop_pending(self, node: str, nodes: set[str]) -> Shard | None:
        """The next shard that has not failed on a node, or that has failed on all nodes with workers."""
        for at, shard in enumerate(self._pending):
            failed = self._failures.get(shard.number, set[str]())
            if node not in failed or nodes <= failed:
                del self._pending[at]
                return shard
        return None

    def _copy_stragglers(self, idle: list[int], now: float) -> list[tuple[int, Shard]]:
        """Give idle workers the slowest shards that are read by one worker only, best on another node."""
        if not idle or not self._finished:
            return []
        latest = now - STRAGGLER_FACTOR * self._seconds / self._finished
        slow = [
            work
            for work in self._workers.values()
            if work.shard is not None
            and work.since < latest
            and work.shard.number in self._left
            and self._readers[work.shard.number] == 1
        ]
        given = list[tuple[int, Shard]]()
        for work in sorted(slow, key=lambda work: work.since)[: len(idle)]:
            chosen = next((worker for worker in idle if self._workers[worker].node != work.node), idle[0])
            idle.remove(chosen)
            assert work.shard is not None
            given.append((chosen, work.shard))
        return given

    def _release(self, worker: int) -> None:
        """Make a worker idle; its shard is pending again unless it was read or another worker reads it."""
        work = self._workers[worker]
        shard, work.shard = work.shard, None
        if shard is None:
            return
        self._readers[shard.number] -= 1
        if self._readers[shard.number]:
            return
        del self._readers[shard.number]
        if shard.number in self._left:
            self._pending.appendleft(shard)
