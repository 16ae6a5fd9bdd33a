"""Which passages are kept is decided by what they are, and not by when they came."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.errors import SettingError
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.partials.examples import (
    MAX_PASSAGES_PER_SHARD,
    NO_PASSAGE,
    NUM_TOP,
    SAMPLE_SIZE,
    Examples,
    PassageSample,
    StoredPassage,
    TopPassages,
    passage_id,
    sampling_priorities,
)
from attnscope.survey.partials.partial import merge_partials
from tests.survey.random_shards import shard_of

HEADS = 2
ROUNDING = 1e-12  # 0.55 * 220 is a little more than 121 to numpy, which then takes the 122nd


def test_ids_have_room_for_every_passage_of_a_large_row_group() -> None:
    first, last = passage_id(2**20, 0), passage_id(2**20, MAX_PASSAGES_PER_SHARD - 1)
    assert passage_id(7, 2**24) == passage_id(7, 0) + 2**24 < passage_id(8, 0)
    assert passage_id(2**20 - 1, MAX_PASSAGES_PER_SHARD - 1) < first < last < 2**53  # as far as JavaScript counts
    with pytest.raises(SettingError, match="shard 3 has more than 4,294,967,296 passages; use a smaller --shard-bytes"):
        passage_id(3, MAX_PASSAGES_PER_SHARD)


def means_of(passages: int, seed: int, *, levels: int | None = None) -> np.ndarray:
    """(passages, heads, statistics) random means, some of them unknown; with `levels`, many are equal."""
    random = np.random.default_rng(seed)
    shape = passages, HEADS, len(STATISTICS)
    means = (random.random(shape) if levels is None else random.integers(0, levels, shape) / levels).astype(np.float32)
    means[random.random(shape) < 0.1] = np.nan
    return means


def examples_of(numbers: np.ndarray, means: np.ndarray, seed: int = 0) -> Examples:
    """What is kept of some passages."""
    top = TopPassages.empty(HEADS).merge(
        TopPassages.from_means(numbers, means, np.broadcast_to(numbers[:, None, None] % 100, means.shape))
    )
    sample = PassageSample.empty(HEADS).merge(
        PassageSample(sampling_priorities(seed, numbers.tolist()), numbers, means)
    )
    texts = {number: StoredPassage("file", number, 0, (1,), f"text {number}", (6,)) for number in numbers.tolist()}
    return Examples.select(top, sample, texts)


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 600), max_size=5), seed=st.integers(0, 5), shuffled=st.booleans())
def test_any_division_and_order_of_passages_keeps_the_same_examples(cuts: list[int], seed: int, shuffled: bool) -> None:
    means, numbers = means_of(600, seed, levels=7), np.arange(600)
    order = np.random.default_rng(seed).permutation(600) if shuffled else numbers
    parts = [examples_of(numbers[part], means[part]) for part in np.split(order, sorted(cuts))]
    found = Examples.empty(HEADS)
    for part in parts:
        found = part.merge(found)
    whole = examples_of(numbers, means)
    for mine, yours in ((found.top, whole.top), (found.sample, whole.sample)):
        for one, other in zip(mine, yours, strict=True):
            np.testing.assert_array_equal(one, other)
    assert list(found.passages.items()) == list(whole.passages.items())


@pytest.mark.parametrize("levels", [None, 4])
def test_the_top_is_that_of_a_sort_over_all_passages(levels: int | None) -> None:
    means, numbers = means_of(500, 1, levels=levels), np.arange(500) * 3
    found = examples_of(numbers, means).top
    for head in range(HEADS):
        for at in range(len(STATISTICS)):
            known = [(-means[n, head, at], numbers[n]) for n in range(500) if not np.isnan(means[n, head, at])]
            best = sorted(known)[:NUM_TOP]
            assert found.passages[head, at].tolist() == [number for _, number in best]
            assert found.scores[head, at].tolist() == [-score for score, _ in best]
            assert found.positions[head, at].tolist() == [number % 100 for _, number in best]


def test_where_there_are_too_few_passages_nobody_stands() -> None:
    means = np.full((3, HEADS, len(STATISTICS)), np.nan, np.float32)
    means[1] = 0.5
    top = examples_of(np.array([4, 5, 6]), means).top
    assert (top.passages == [5, NO_PASSAGE, NO_PASSAGE, NO_PASSAGE]).all()
    assert (top.positions == [5, -1, -1, -1]).all()


def test_the_sample_has_the_lowest_lots_and_every_passage_the_same_chance() -> None:
    numbers = np.array([passage_id(shard, number) for shard in range(40) for number in range(50)])
    means = np.zeros((len(numbers), HEADS, len(STATISTICS)), np.float32)
    taken = np.zeros(len(numbers))
    for seed in range(50):
        priorities = sampling_priorities(seed, numbers.tolist())
        sample = PassageSample.empty(HEADS).merge(PassageSample(priorities, numbers, means))
        assert set(sample.passages.tolist()) == set(numbers[np.argsort(priorities)[:SAMPLE_SIZE]].tolist())
        taken += np.isin(numbers, sample.passages)
    for groups in (taken.reshape(40, 50).sum(1), taken.reshape(40, 50).sum(0), taken.reshape(-1, 2).sum(0)):
        expected = groups.mean()  # a sum of squares that is as good as chi-squared with one degree less than groups
        distance = ((groups - expected) ** 2 / expected).sum() / (1 - SAMPLE_SIZE / len(numbers))
        degrees = len(groups) - 1
        assert distance < degrees + 4 * np.sqrt(2 * degrees)
    assert len({lot for seed in (0, 1) for lot in sampling_priorities(seed, numbers.tolist()).tolist()}) == 2 * len(
        numbers
    )


@pytest.mark.parametrize("passages", [1, 2, 9, 10, 11, 20, 255, 256])
@pytest.mark.parametrize("levels", [None, 3])
def test_deciles_stand_in_the_middle_of_each_tenth(passages: int, levels: int | None) -> None:
    means, numbers = means_of(passages, 3, levels=levels), np.arange(passages) + 1000
    sample = examples_of(numbers, means).sample
    found = sample.deciles()
    assert found.shape == (HEADS, len(STATISTICS), 10)
    for head in range(HEADS):
        for at in range(len(STATISTICS)):
            known = means[:, head, at][~np.isnan(means[:, head, at])]
            places = found[head, at]
            if not len(known):
                assert (places == -1).all()
                continue
            shares = np.arange(1, 20, 2) / 20 - ROUNDING
            exact = np.quantile(known.astype(np.float64), shares, method="inverted_cdf")
            np.testing.assert_array_equal(sample.means[places, head, at], exact.astype(np.float32))
            chosen = sample.passages[places]
            order = sorted(
                (mean, number) for mean, number in zip(means[:, head, at], numbers, strict=True) if mean >= 0
            )
            ranks = [order.index((mean, number)) for mean, number in zip(sample.means[places, head, at], chosen)]  # noqa: B905
            assert ranks == [-(-len(known) * (2 * tenth - 1) // 20) - 1 for tenth in range(1, 11)]


def test_an_empty_sample_has_no_deciles() -> None:
    assert (PassageSample.empty(HEADS).deciles() == -1).all()


def test_texts_are_kept_exactly_for_what_is_referred_to() -> None:
    merged = merge_partials(shard_of(number, 0, batches=8) for number in range(12))
    examples = merged.examples
    wanted = set(examples.top.passages.ravel().tolist()) | set(examples.sample.passages.tolist())
    assert list(examples.passages) == sorted(wanted - {NO_PASSAGE})
    assert SAMPLE_SIZE < len(examples.passages) < merged.passages
    for number, example in examples.passages.items():
        assert example.file == f"{number // MAX_PASSAGES_PER_SHARD}.txt"
        assert len(example.ids) == len(example.ends)
        starts = (0, *example.ends[:-1])
        pieces = [example.text[start:end] for start, end in zip(starts, example.ends, strict=True)]
        assert pieces == [f"{token}é "[token % 2 :] for token in example.ids]
