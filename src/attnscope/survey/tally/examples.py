"""Passages to look at: for each head and statistic those with the highest means, and a sample of the whole corpus.

Which passages are kept follows from what they are and not from when they came, so that shards can be merged in any
order. In: means of passages. Out: `Examples`, mergeable. A text is kept once, and only while something refers to it.
Does not know: models, files. Memory: TOP numbers a head and statistic, SAMPLE means of each, and their texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.survey.tally.statistics import STATISTICS

TOP = 4
"""Passages that are kept for each head and statistic."""

SAMPLE = 256
"""Passages of the sample."""

PASSAGES_A_SHARD = 2**24

NOBODY = np.iinfo(np.int64).max
"""Stands where there is no passage: after all others."""


def passage_id(shard: int, number: int) -> int:
    """The name of a passage, the same whoever reads it and when.

    >>> passage_id(2, 3)
    33554435
    """
    assert 0 <= number < PASSAGES_A_SHARD, f"passage {number} of shard {shard}"
    return shard * PASSAGES_A_SHARD + number


class Example(NamedTuple):
    """A passage that can be shown, and read again by the model: where it was found, its ids and its text."""

    file: str
    start: int
    offset: int
    ids: tuple[int, ...]
    text: str
    ends: tuple[int, ...]
    """For each token the character of the text at which it ends."""


class Top(NamedTuple):
    """Each (heads, statistics, TOP): the passages of the highest means, the lower id first where means are equal."""

    scores: NDArray[np.float32]
    passages: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Of the strongest query."""

    @staticmethod
    def empty(heads: int) -> Top:
        """No passages yet."""
        shape = heads, len(STATISTICS), TOP
        return Top(np.full(shape, -np.inf, np.float32), np.full(shape, NOBODY), np.full(shape, -1))

    @staticmethod
    def among(passages: NDArray[np.int64], means: NDArray[np.float32], positions: NDArray[np.int64]) -> Top:
        """All of some passages, from (passages, heads, statistics); a mean that is NaN is of nobody."""
        known = ~np.isnan(means)
        return Top(
            np.moveaxis(np.where(known, means, np.float32(-np.inf)), 0, -1),
            np.moveaxis(np.where(known, passages[:, None, None], NOBODY), 0, -1),
            np.moveaxis(np.where(known, positions, -1), 0, -1),
        )

    def plus(self, other: Top) -> Top:
        """The best of both."""
        scores = np.concatenate([self.scores, other.scores], -1)
        passages = np.concatenate([self.passages, other.passages], -1)
        positions = np.concatenate([self.positions, other.positions], -1)
        order = np.lexsort((passages, -scores))[..., :TOP]
        return Top(
            np.take_along_axis(scores, order, -1),
            np.take_along_axis(passages, order, -1),
            np.take_along_axis(positions, order, -1),
        )


class Sample(NamedTuple):
    """The passages with the lowest lots, in their order."""

    lots: NDArray[np.uint64]
    passages: NDArray[np.int64]
    means: NDArray[np.float32]
    """(passages, heads, statistics), NaN where no query counts."""

    @staticmethod
    def empty(heads: int) -> Sample:
        """No passages yet."""
        means = np.zeros((0, heads, len(STATISTICS)), np.float32)
        return Sample(np.zeros(0, np.uint64), np.zeros(0, np.int64), means)

    def plus(self, other: Sample) -> Sample:
        """The lowest lots of both."""
        lots = np.concatenate([self.lots, other.lots])
        passages = np.concatenate([self.passages, other.passages])
        order = np.lexsort((passages, lots))[:SAMPLE]
        return Sample(lots[order], passages[order], np.concatenate([self.means, other.means])[order])

    def deciles(self) -> NDArray[np.int64]:
        """(heads, statistics, 10): which of the sample stands in the middle of each tenth, or -1 without any.

        By the means of a head, from the lowest to the highest; the lower id first where means are equal.
        """
        means = np.moveaxis(self.means, 0, -1)
        order = np.lexsort((np.broadcast_to(self.passages, means.shape), means))  # NaN comes last
        known = np.count_nonzero(~np.isnan(means), -1)[..., None]
        ranks = -(-known * np.arange(1, 20, 2) // 20) - 1
        if not len(self.passages):
            return np.full(ranks.shape, -1)
        return np.where(known, np.take_along_axis(order, ranks.clip(0), -1), -1)


class Examples(NamedTuple):
    """What is kept of single passages."""

    top: Top
    sample: Sample
    passages: Mapping[int, Example]
    """Those that are referred to, in the order of their ids."""

    @staticmethod
    def empty(heads: int = 0) -> Examples:
        """Nothing yet."""
        return Examples(Top.empty(heads), Sample.empty(heads), {})

    @staticmethod
    def of(top: Top, sample: Sample, passages: Mapping[int, Example]) -> Examples:
        """With those of the passages that are referred to."""
        return Examples(top, sample, referred(passages, [top], sample))

    def plus(self, other: Examples) -> Examples:
        """What is kept of both."""
        passages = {**self.passages, **other.passages}
        return Examples.of(self.top.plus(other.top), self.sample.plus(other.sample), passages)


def referred(passages: Mapping[int, Example], tops: Sequence[Top], sample: Sample) -> dict[int, Example]:
    """Those of the passages that something refers to, in the order of their ids."""
    wanted = np.unique(np.concatenate([sample.passages, *(top.passages.ravel() for top in tops)]))
    return {number: passages[number] for number in wanted.tolist() if number != NOBODY}


def lots_of(seed: int, passages: Sequence[int]) -> NDArray[np.uint64]:
    """A number for each passage that follows from its id and is as good as drawn."""
    texts = (f"{seed} {passage}".encode() for passage in passages)
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
