"""Shards can be merged in any order."""

import functools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.errors import SettingError, ShapeError
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.partial import MAX_PROBLEMS, PartialResult, Problems, merge, merge_partials
from attnscope.survey.partials.partial_files import load_partial, save_partial
from tests.survey.random_shards import assert_same, shard_of

ROUNDING = 1e-6

shard = functools.cache(shard_of)


def merged_in_any_way(partials: list[PartialResult], chance: random.Random) -> PartialResult:
    """All of them, by merging any two until one is left."""
    partials = list(partials)
    while len(partials) > 1:
        chance.shuffle(partials)
        partials.append(merge(partials.pop(), partials.pop()))
    return partials[0]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 3),
    batches=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    levels=st.sampled_from([None, 3]),
    chance=st.randoms(use_true_random=False),
)
def test_any_order_and_any_tree_of_merging_gives_the_same(
    seed: int, batches: list[int], levels: int | None, chance: random.Random
) -> None:
    partials = [shard(number, seed, batches=many, levels=levels) for number, many in enumerate(batches)]
    assert_same(merged_in_any_way(partials, chance), merge_partials(partials), tolerance=ROUNDING)


@settings(max_examples=30)
@given(seed=st.integers(0, 3), batches=st.integers(0, 3))
def test_a_partial_merged_with_an_empty_one_is_itself(seed: int, batches: int) -> None:
    partial = shard(5, seed, batches=batches)
    for empty in (PartialResult.empty(), PartialResult.empty(partial.layers, partial.heads)):
        assert_same(merge(partial, empty), partial, tolerance=0.0)
        assert_same(merge(empty, partial), partial, tolerance=0.0)


def test_merging_in_the_order_of_shards_gives_the_same_bits_however_they_were_computed(tmp_path: Path) -> None:
    for number in (3, 0, 4, 2, 1):
        save_partial(shard_of(number, 1), tmp_path / f"{number}.partial")
    save_partial(shard_of(2, 1), tmp_path / "2.partial")  # a second worker had the same shard
    from_files = merge_partials(load_partial(tmp_path / f"{number}.partial") for number in range(5))
    assert_same(from_files, merge_partials(shard_of(number, 1) for number in range(5)), tolerance=0.0)


def test_a_merged_partial_counts_what_its_shards_count() -> None:
    partials = [shard(number, 2) for number in range(4)]
    merged = merge_partials(partials)
    for name in ("tokens", "passages", "documents"):
        assert getattr(merged, name) == sum(getattr(partial, name) for partial in partials) > 0
    assert merged.moments.counts.sum() == sum(partial.moments.counts.sum() for partial in partials) > 0
    assert dict(merged.digests) == {number: f"digest {number}" for number in range(4)}


def test_a_shard_cannot_be_counted_twice() -> None:
    both = merge(shard(0, 0), shard(1, 0))
    with pytest.raises(SettingError, match="shard 1 is in both"):
        merge(both, shard(1, 0))


class CountedShard(int):
    """The number of a shard, which counts how often it is compared or hashed."""

    operations = 0

    def __lt__(self, other: int) -> bool:
        CountedShard.operations += 1
        return int(self) < int(other)

    def __hash__(self) -> int:
        CountedShard.operations += 1
        return hash(int(self))

    def __eq__(self, other: object) -> bool:
        CountedShard.operations += 1
        return isinstance(other, int) and int(self) == int(other)


def test_merging_twice_as_many_shards_takes_twice_as_many_operations() -> None:
    counts = []
    for many in (200, 400):
        partials = [replace(PartialResult.empty(), digests={CountedShard(number): "digest"}) for number in range(many)]
        CountedShard.operations = 0
        assert list(merge_partials(partials).digests) == list(range(many))
        counts.append(CountedShard.operations)
    assert counts[1] < 2.5 * counts[0], counts


def test_heads_of_different_models_are_not_merged() -> None:
    other = PartialResult.empty(["encoder.0", "encoder.0"], [0, 1])
    with pytest.raises(ShapeError, match=r"5 heads of layers.0.attention .* 2 heads of encoder.0"):
        merge(shard(0, 0), other)


def test_problems_are_listed_in_the_order_of_files_and_places_and_all_are_counted() -> None:
    many = [Problem("b.txt", f"byte {place:,}", "broken") for place in range(0, 3 * MAX_PROBLEMS, 2)]
    more = [Problem("b.txt", f"byte {place:,}", "broken") for place in range(1, 3 * MAX_PROBLEMS, 2)]
    whole = Problem("a.txt", "", "empty")
    for both in (Problems.of(many).merge(Problems.of([*more, whole])), Problems.of([whole, *more, *many])):
        assert both.count == 3 * MAX_PROBLEMS + 1
        assert both.first[0] == whole
        assert [problem.location for problem in both.first[1:]] == [f"byte {n:,}" for n in range(MAX_PROBLEMS - 1)]
