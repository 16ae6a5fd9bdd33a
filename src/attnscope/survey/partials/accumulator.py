"""Accumulates scores per query, batch by batch, into the partial result of a shard.

    begin_batch(batch, numbers, texts)      passages and their tokens
    add_layer(name, heads, scores)          once for each layer
    finish_batch()                          after all layers

In: batches and `RowScores`. Out: a `PartialResult`. The same passages give the same bits for any number of threads.
Does not know: models, files. Memory: that of `BatchSums`, and the partial result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from attnscope.errors import ShapeError
from attnscope.heads.rows import RowScores
from attnscope.survey.corpus.batches import Batch, PlacedPassage
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.batch_sums import BatchSums
from attnscope.survey.partials.examples import (
    Examples,
    PassageSample,
    StoredPassage,
    TopPassages,
    sampling_priorities,
    select_referenced,
)
from attnscope.survey.partials.moments import Moments
from attnscope.survey.partials.partial import PartialResult, Problems


class ShardAccumulator:
    """Accumulates the partial result of one shard.

    Args:
        seed: Random seed of the sample of passages.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self._heads: dict[str, tuple[int, ...]] = {}
        self._moments: dict[str, Moments] = {}
        self._tops: dict[str, TopPassages] = {}
        self._sample: PassageSample | None = None
        self._passages: dict[int, StoredPassage] = {}
        self._problems: list[Problem] = []
        self._num_tokens = self._num_passages = 0
        self._current: BatchSums | None = None

    def begin_batch(self, batch: Batch, numbers: Sequence[int], texts: Sequence[Sequence[str]]) -> None:
        """Start a batch.

        Args:
            batch: The batch.
            numbers: The id of each passage, see `passage_id`.
            texts: For each passage, the text of each token.
        """
        assert self._current is None, "call finish_batch first"
        self._current = BatchSums(batch, numbers)
        for placed, number, pieces in zip(batch.passages, numbers, texts, strict=True):
            self._passages[number] = _example(placed, pieces)
            self._num_tokens += len(placed.passage.ids)
        self._num_passages += len(batch.passages)

    def add_layer(self, name: str, heads: Sequence[int], scores: Mapping[str, RowScores]) -> None:
        """Add the scores of one layer.

        Args:
            name: The name of the layer.
            heads: The numbers of its heads.
            scores: Scores per query (rows, heads, tokens), by statistic; missing statistics are not counted.

        Raises:
            ShapeError: The heads or shapes differ from those of earlier batches.
        """
        assert self._current is not None, "call begin_batch first"
        if self._heads.setdefault(name, tuple(heads)) != tuple(heads):
            raise ShapeError(
                f"{name}: expected the heads {list(self._heads[name])} of earlier batches, got {list(heads)}"
            )
        found = self._current.sum_layer(name, len(heads), scores)
        self._moments[name] = self._moments[name].merge(found.moments) if name in self._moments else found.moments
        self._tops[name] = self._tops.get(name, TopPassages.empty(len(heads))).merge(
            TopPassages.from_means(self._current.numbers, found.means, found.positions)
        )

    def finish_batch(self) -> None:
        """Select examples after all layers have been added, and drop the other passages of the batch.

        Raises:
            ShapeError: The layers differ from those of earlier batches.
        """
        assert self._current is not None, "call begin_batch first"
        current, self._current = self._current, None
        if list(current.means) != list(self._heads):
            differing = sorted(current.means.keys() ^ self._heads.keys()) or list(current.means)
            raise ShapeError(
                f"expected the layers of earlier batches, but this batch differs in {', '.join(differing[:3])}"
            )
        priorities = sampling_priorities(self._seed, current.numbers.tolist())
        found = PassageSample(priorities, current.numbers, np.concatenate(list(current.means.values()), 1))
        self._sample = (self._sample or PassageSample.empty(found.means.shape[1])).merge(found)
        self._passages = select_referenced(self._passages, list(self._tops.values()), self._sample)
        self._problems += current.problems()

    def to_partial(self, shard: int, digest: str, *, documents: int, problems: Iterable[Problem] = ()) -> PartialResult:
        """The partial result of the shard.

        Args:
            shard: The number of the shard.
            digest: A hash of its input.
            documents: The number of documents.
            problems: Skipped input.
        """
        assert self._current is None, "call finish_batch first"
        empty = PartialResult.empty()
        if self._sample is None:
            examples = empty.examples
        else:
            top = TopPassages(*map(np.concatenate, zip(*self._tops.values(), strict=True)))
            examples = Examples.select(top, self._sample, self._passages)
        return PartialResult(
            layers=tuple(name for name, heads in self._heads.items() for _ in heads),
            heads=tuple(head for heads in self._heads.values() for head in heads),
            moments=Moments.concatenate([self._moments[name] for name in self._heads]),
            examples=examples,
            tokens=self._num_tokens,
            passages=self._num_passages,
            documents=documents,
            problems=Problems.of([*problems, *self._problems]),
            digests={shard: digest},
        )


def _example(placed: PlacedPassage, pieces: Sequence[str]) -> StoredPassage:
    passage = placed.passage
    if len(pieces) != len(passage.ids):
        raise ShapeError(
            f"expected one text for each of the {len(passage.ids):,} tokens of a passage, got {len(pieces):,}"
        )
    ends = tuple(accumulate(map(len, pieces)))
    return StoredPassage(passage.file, passage.start, passage.offset, tuple(passage.ids), "".join(pieces), ends)
