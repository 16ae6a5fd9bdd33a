"""Example passages: those with the highest means of each head and statistic, and a random sample of the corpus.

The selection does not depend on the order of passages, so shards can be merged in any order. In: means of passages.
Out: `Examples`, which can be merged. Each text is stored once, while something refers to it.
Does not know: models, files. Memory: NUM_TOP values per head and statistic, SAMPLE_SIZE means of each, and the texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import SettingError
from attnscope.survey.partials.bins import STATISTICS

NUM_TOP = 4
"""The number of top passages per head and statistic."""

SAMPLE_SIZE = 256
"""The number of passages in the random sample."""

NUM_DECILES = 10

MAX_PASSAGES_PER_SHARD = 2**32
"""With at most 2^20 shards, a passage id is an integer that JavaScript holds exactly, too."""

NO_PASSAGE = np.iinfo(np.int64).max
"""Marks an empty place; it sorts after all passage ids."""


def passage_id(shard: int, number: int) -> int:
    """A passage id, which depends only on the shard and the index of the passage in it.

    Raises:
        SettingError: The shard has more passages than ids.

    >>> passage_id(2, 3)
    8589934595
    """
    if number >= MAX_PASSAGES_PER_SHARD:
        raise SettingError(
            f"survey: shard {shard} has more than {MAX_PASSAGES_PER_SHARD:,} passages; use a smaller --shard-bytes, "
            "and smaller row groups of Parquet"
        )
    return shard * MAX_PASSAGES_PER_SHARD + number


class StoredPassage(NamedTuple):
    """A passage that can be displayed and run through the model again: its source, token ids and text."""

    file: str
    start: int
    offset: int
    ids: tuple[int, ...]
    text: str
    ends: tuple[int, ...]
    """The character offset in the text at which each token ends."""


class TopPassages(NamedTuple):
    """The passages with the highest means, in arrays (heads, statistics, NUM_TOP); ties are sorted by id."""

    scores: NDArray[np.float32]
    passages: NDArray[np.int64]
    positions: NDArray[np.int64]
    """The token position of the query with the highest value."""

    @staticmethod
    def empty(heads: int) -> TopPassages:
        """No passages yet."""
        shape = heads, len(STATISTICS), NUM_TOP
        return TopPassages(np.full(shape, -np.inf, np.float32), np.full(shape, NO_PASSAGE), np.full(shape, -1))

    @staticmethod
    def from_means(
        passages: NDArray[np.int64], means: NDArray[np.float32], positions: NDArray[np.int64]
    ) -> TopPassages:
        """Passages with means (passages, heads, statistics), of which NaN are left out."""
        known = ~np.isnan(means)
        return TopPassages(
            np.moveaxis(np.where(known, means, np.float32(-np.inf)), 0, -1),
            np.moveaxis(np.where(known, passages[:, None, None], NO_PASSAGE), 0, -1),
            np.moveaxis(np.where(known, positions, -1), 0, -1),
        )

    def merge(self, other: TopPassages) -> TopPassages:
        """The passages with the highest means of both; only cells that `other` may change are sorted."""
        changing = (other.scores >= self.scores[..., -1:]).any(-1)
        both = [np.concatenate([mine[changing], yours[changing]], -1) for mine, yours in zip(self, other, strict=True)]
        order = np.lexsort((both[1], -both[0]))[..., :NUM_TOP]
        merged = TopPassages(self.scores.copy(), self.passages.copy(), self.positions.copy())
        for array, candidates in zip(merged, both, strict=True):
            array[changing] = np.take_along_axis(candidates, order, -1)
        return merged


class PassageSample(NamedTuple):
    """The passages with the lowest random priorities, in this order."""

    priorities: NDArray[np.uint64]
    passages: NDArray[np.int64]
    means: NDArray[np.float32]
    """Means (passages, heads, statistics), NaN where no query has a value."""

    @staticmethod
    def empty(heads: int) -> PassageSample:
        """No passages yet."""
        means = np.zeros((0, heads, len(STATISTICS)), np.float32)
        return PassageSample(np.zeros(0, np.uint64), np.zeros(0, np.int64), means)

    def merge(self, other: PassageSample) -> PassageSample:
        """The passages with the lowest priorities of both."""
        if len(self.priorities) == SAMPLE_SIZE and not (other.priorities <= self.priorities[-1]).any():
            return self  # means are large, and a full sample of many passages rarely changes
        priorities = np.concatenate([self.priorities, other.priorities])
        passages = np.concatenate([self.passages, other.passages])
        order = np.lexsort((passages, priorities))[:SAMPLE_SIZE]
        return PassageSample(priorities[order], passages[order], np.concatenate([self.means, other.means])[order])

    def deciles(self) -> NDArray[np.int64]:
        """Indices (heads, statistics, NUM_DECILES) of the passage in the middle of each decile, or -1 without any.

        Passages are sorted by the mean of a head, the lowest first, and ties by id.
        """
        means = np.moveaxis(self.means, 0, -1)
        order = np.lexsort((np.broadcast_to(self.passages, means.shape), means))  # NaN comes last
        known = np.count_nonzero(~np.isnan(means), -1)[..., None]
        ranks = -(-known * np.arange(1, 2 * NUM_DECILES, 2) // (2 * NUM_DECILES)) - 1
        if not len(self.passages):
            return np.full(ranks.shape, -1)
        return np.where(known, np.take_along_axis(order, ranks.clip(0), -1), -1)


class Examples(NamedTuple):
    """The top passages, the sample, and the texts of both."""

    top: TopPassages
    sample: PassageSample
    passages: Mapping[int, StoredPassage]
    """The passages that `top` and `sample` refer to, by id, sorted."""

    @staticmethod
    def empty(heads: int = 0) -> Examples:
        """No passages yet."""
        return Examples(TopPassages.empty(heads), PassageSample.empty(heads), {})

    @staticmethod
    def select(top: TopPassages, sample: PassageSample, passages: Mapping[int, StoredPassage]) -> Examples:
        """Keep only the passages that are referred to."""
        return Examples(top, sample, select_referenced(passages, [top], sample))

    def merge(self, other: Examples) -> Examples:
        """The examples of both."""
        passages = {**self.passages, **other.passages}
        return Examples.select(self.top.merge(other.top), self.sample.merge(other.sample), passages)


def select_referenced(
    passages: Mapping[int, StoredPassage], tops: Sequence[TopPassages], sample: PassageSample
) -> dict[int, StoredPassage]:
    """The passages that `tops` and `sample` refer to, sorted by id."""
    wanted = np.unique(np.concatenate([sample.passages, *(top.passages.ravel() for top in tops)]))
    return {number: passages[number] for number in wanted.tolist() if number != NO_PASSAGE}


def sampling_priorities(seed: int, passages: Sequence[int]) -> NDArray[np.uint64]:
    """A pseudorandom priority for each passage, from its id and the seed."""
    texts = (f"{seed} {passage}".encode() for passage in passages)
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
