"""A failure in a rank fails the test that caused it, and does not reach the next one."""

import os

import pytest

from tests.train.ranks import LastingRanks


def fail_on_rank(rank: int) -> int:
    if os.environ["RANK"] == str(rank):
        raise ValueError("the reason")
    return os.getpid()


def exit_on_rank(rank: int) -> None:
    if os.environ["RANK"] == str(rank):
        os._exit(3)


def test_processes_last_until_a_rank_fails(ranks: LastingRanks) -> None:
    first = ranks.run(fail_on_rank, 2, None)
    assert len(set(first)) == 2
    assert ranks.run(fail_on_rank, 2, None) == first
    with pytest.raises(RuntimeError, match=r"rank 1 failed:\n(.*\n)*ValueError: the reason"):
        ranks.run(fail_on_rank, 2, 1)
    with pytest.raises(RuntimeError, match="rank 0 ended without an answer"):
        ranks.run(exit_on_rank, 2, 0)
    assert not set(ranks.run(fail_on_rank, 2, None)) & set(first)
