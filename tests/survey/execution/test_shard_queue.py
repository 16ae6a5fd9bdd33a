"""Every shard is read, whatever happens to workers and nodes, and no worker is idle while there is work."""

from __future__ import annotations

import random

import pytest

from attnscope.errors import AttnScopeError
from attnscope.survey.corpus.plan import Shard
from attnscope.survey.execution.shard_queue import MAX_FAILURES, STRAGGLER_FACTOR, ShardQueue


def shards(count: int) -> list[Shard]:
    return [Shard(number, ()) for number in range(count)]


def queue_of(num_shards: int, nodes: list[str]) -> ShardQueue:
    """A queue with one worker per entry of `nodes`."""
    queue = ShardQueue(shards(num_shards))
    for worker, node in enumerate(nodes):
        queue.add_worker(worker, node)
    return queue


def numbers(given: list[tuple[int, Shard]]) -> list[tuple[int, int]]:
    return [(worker, shard.number) for worker, shard in given]


def test_ten_thousand_workers_have_work_as_long_as_there_are_shards() -> None:
    queue = queue_of(25_000, [f"node {worker // 8}" for worker in range(10_000)])
    first = queue.assign(0.0)
    assert len({shard.number for _, shard in first}) == len({worker for worker, _ in first}) == 10_000
    assert queue.assign(0.5) == []
    for worker in range(10_000):
        assert queue.finish(worker, 1.0)
    assert len(queue.assign(1.0)) == 10_000
    for worker in range(10_000):
        assert queue.finish(worker, 2.0)
    assert len(queue.assign(2.0)) == 5000
    assert queue.num_left == 5000


def test_the_shard_of_a_lost_worker_is_the_next_one() -> None:
    queue = queue_of(4, ["a", "b"])
    assert numbers(queue.assign(0.0)) == [(0, 0), (1, 1)]
    queue.remove_worker(0)
    queue.remove_worker(0)  # it is gone
    queue.add_worker(2, "c")
    assert numbers(queue.assign(0.0)) == [(2, 0)]
    assert queue.num_left == 4


def test_a_shard_that_failed_goes_to_another_node() -> None:
    queue = queue_of(2, ["a", "b"])
    queue.assign(0.0)
    assert queue.fail(0, "disk", has_other_nodes=True) is None
    assert queue.assign(0.0) == []  # the same node would fail again
    queue.finish(1, 1.0)
    assert numbers(queue.assign(1.0)) == [(1, 0)]


def test_a_shard_that_failed_on_all_nodes_that_are_left_is_tried_there_again() -> None:
    queue = queue_of(2, ["a", "b"])
    queue.assign(0.0)
    queue.fail(0, "disk", has_other_nodes=True)
    queue.remove_worker(1)
    assert numbers(queue.assign(0.0)) == [(0, 1)]
    queue.finish(0, 1.0)
    assert numbers(queue.assign(1.0)) == [(0, 0)]


def test_a_node_that_fails_in_a_row_is_excluded_and_its_shards_are_read_elsewhere() -> None:
    queue = queue_of(10, ["bad", "bad", "good"])
    queue.assign(0.0)
    named = [queue.fail(0, "disk", has_other_nodes=True)]
    while named[-1] is None:
        queue.assign(0.0)
        named.append(queue.fail(0, "disk", has_other_nodes=True))
    assert named == [None] * (MAX_FAILURES - 1) + ["bad"]
    assert queue.exclude("bad", "disk") == [0, 1]
    assert queue.excluded == {"bad": "disk"}
    read = {2}
    queue.finish(2, 1.0)
    while queue.num_left:
        ((worker, shard),) = queue.assign(1.0)
        assert worker == 2
        read.add(shard.number)
        assert queue.finish(worker, 2.0)
    assert read == set(range(10))


def test_a_success_ends_a_row_of_failures() -> None:
    queue = queue_of(20, ["flaky", "good"])
    for _ in range(3 * MAX_FAILURES):
        queue.assign(0.0)
        assert queue.fail(0, "network", has_other_nodes=True) is None
        queue.assign(0.0)
        assert queue.finish(0, 1.0)
        queue.finish(1, 1.0)


def test_a_failure_without_another_node_ends_the_survey() -> None:
    queue = queue_of(2, ["a", "a"])
    queue.assign(0.0)
    with pytest.raises(AttnScopeError, match="no such file"):
        queue.fail(1, "no such file", has_other_nodes=False)


def test_a_shard_that_fails_on_several_nodes_ends_the_survey() -> None:
    queue = queue_of(1, ["a", "b", "c", "d"])
    for attempt in range(1, MAX_FAILURES + 1):
        ((worker, _),) = queue.assign(0.0)
        if attempt < MAX_FAILURES:
            assert queue.fail(worker, "no such file", has_other_nodes=True) is None
        else:
            with pytest.raises(AttnScopeError, match="no such file"):
                queue.fail(worker, "no such file", has_other_nodes=True)


def test_an_idle_worker_reads_a_copy_of_a_straggler_and_the_first_result_counts() -> None:
    queue = queue_of(3, ["a", "a", "b"])
    queue.assign(0.0)
    assert queue.finish(1, 10.0)
    assert queue.finish(2, 10.0)
    assert queue.assign(STRAGGLER_FACTOR * 10.0) == []  # not slow yet
    assert numbers(queue.assign(STRAGGLER_FACTOR * 10.0 + 1)) == [(2, 0)]  # on the other node
    assert queue.assign(1000.0) == []  # one copy
    assert queue.finish(2, 40.0)
    assert queue.num_left == 0
    assert not queue.finish(0, 50.0)
    assert queue.assign(1000.0) == []


def test_a_copy_that_fails_or_dies_leaves_the_original() -> None:
    for loss in ("fails", "dies", "original dies"):
        queue = queue_of(2, ["a", "b"])
        queue.assign(0.0)
        queue.finish(1, 1.0)
        assert numbers(queue.assign(10.0)) == [(1, 0)]
        if loss == "fails":
            queue.fail(1, "disk", has_other_nodes=True)
        else:
            queue.remove_worker(1 if loss == "dies" else 0)
        assert all(worker == 1 for worker, _ in queue.assign(10.5))
        assert queue.finish(1 if loss == "original dies" else 0, 20.0)
        assert queue.num_left == 0


def test_a_failure_after_a_copy_was_read_is_ignored() -> None:
    queue = queue_of(2, ["a", "b"])
    queue.assign(0.0)
    queue.finish(1, 1.0)
    queue.assign(10.0)
    assert queue.finish(1, 11.0)
    assert queue.fail(0, "disk", has_other_nodes=False) is None


def test_copies_are_not_read_while_other_shards_are_pending() -> None:
    queue = queue_of(3, ["a", "b"])
    queue.assign(0.0)
    queue.finish(1, 1.0)
    assert numbers(queue.assign(100.0)) == [(1, 2)]


@pytest.mark.parametrize("seed", range(50))
def test_any_history_of_losses_and_failures_ends_with_every_shard_read_once(seed: int) -> None:
    dice, queue = random.Random(seed), ShardQueue[Shard]()
    queue.add_tasks(shards(dice.randint(1, 30)))
    bad, total, read, next_worker = {"n0"}, queue.num_left, list[int](), 0
    reading = dict[int, Shard]()
    for now in range(10_000):
        if not queue.num_left:
            break
        if len(queue._workers) < 4:
            queue.add_worker(next_worker, f"n{dice.randint(1 if queue.excluded else 0, 2)}")
            next_worker += 1
        reading |= dict(queue.assign(float(now)))
        if not reading:
            continue
        worker = dice.choice(list(reading))
        shard, event = reading.pop(worker), dice.random()
        if queue._workers[worker].node in bad:
            node = queue.fail(worker, "disk", has_other_nodes=True)
            for lost in queue.exclude(node, "disk") if node else ():
                reading.pop(lost, None)
        elif event < 0.2:
            queue.remove_worker(worker)
        elif queue.finish(worker, float(now)):
            read.append(shard.number)
    assert sorted(read) == list(range(total))
