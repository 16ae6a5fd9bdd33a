"""Accumulates scores per query, batch by batch, into the partial result of a shard.

    begin_batch(batch, numbers, texts)      passages and their tokens
    add_layer(name, heads, scores)          once for each layer
    finish_batch()                          after all layers

In: batches and `RowScores`. Out: a `PartialResult`. The same passages give the same bits: numpy sums passage by
passage, for any number of threads. Does not know: models, files. Memory: the scores of one layer and batch in float64,
and the partial result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnscope.errors import ShapeError
from attnscope.heads.rows import RowScores
from attnscope.survey.corpus.batches import Batch, PlacedPassage
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.bins import BIN_OFFSETS, NUM_BINS, STATISTICS
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
        self._current: _BatchScores | None = None

    def begin_batch(self, batch: Batch, numbers: Sequence[int], texts: Sequence[Sequence[str]]) -> None:
        """Start a batch.

        Args:
            batch: The batch.
            numbers: The id of each passage, see `passage_id`.
            texts: For each passage, the text of each token.
        """
        assert self._current is None, "call finish_batch first"
        self._current = _BatchScores(batch, numbers)
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


class _LayerSums(NamedTuple):
    """The sums of one layer in one batch; `means` and `positions` are (passages, heads, statistics)."""

    moments: Moments
    means: NDArray[np.float32]
    positions: NDArray[np.int64]


class _BatchScores:
    """The current batch: which tokens belong to which passage, and the means of each passage."""

    def __init__(self, batch: Batch, numbers: Sequence[int]):
        self.passages = batch.passages
        self.numbers = np.array(numbers, np.int64)
        self.means: dict[str, NDArray[np.float32]] = {}
        self._shape = tuple(batch.ids.shape)
        self._lengths = np.array([len(placed.passage.ids) for placed in batch.passages])
        self._starts = np.concatenate([[0], self._lengths.cumsum()[:-1]])
        first = np.array([placed.row * self._shape[1] + placed.start for placed in batch.passages])
        self._within = np.arange(self._lengths.sum()) - np.repeat(self._starts, self._lengths)
        places = np.repeat(first, self._lengths) + self._within
        self._ordered = np.array_equal(places, np.arange(batch.ids.numel()))  # the tokens are already in passage order
        self._places = torch.from_numpy(places)
        self._unknown = np.zeros(len(batch.passages), np.int64)

    def sum_layer(self, name: str, heads: int, scores: Mapping[str, RowScores]) -> _LayerSums:
        """Sums, histograms, means and strongest queries of a layer, computed in arrays (statistics, heads, ...)."""
        values, counted = self._scores_by_passage(name, heads, scores)
        finite = np.isfinite(values)
        self._unknown += self._reduce_passages(np.add, counted & ~finite, np.int64).sum((0, 1))
        counted &= finite
        values = np.where(counted, values, np.float32(0.0))
        doubles = values.astype(np.float64)
        counts = self._reduce_passages(np.add, counted, np.int64)
        sums = self._reduce_passages(np.add, doubles)
        maxima = self._reduce_passages(np.maximum, np.where(counted, values, np.float32(-np.inf)))
        moments = Moments(
            counts=counts.sum(-1).T,
            sums=sums.sum(-1).T,
            squares=self._reduce_passages(np.add, np.square(doubles, out=doubles)).sum(-1).T,
            histograms=_histograms(values, counted),
            minima=np.where(counted, values, np.float32(np.inf)).min(-1).T,
            maxima=maxima.max(-1).T,
            passages=(counts > 0).sum(-1).T,
            squared_sums=(sums * sums).sum(-1).T,
            squared_counts=(counts * counts).sum(-1).T,
            sum_count_products=(sums * counts).sum(-1).T,
        )
        means = (sums / np.where(counts, counts, np.nan)).astype(np.float32)
        self.means[name] = means.T
        return _LayerSums(moments, means.T, self._strongest_positions(values, counted, maxima).T)

    def problems(self) -> list[Problem]:
        """A problem for each passage with NaN or infinite scores, which are not counted."""
        return [
            Problem(
                passage.file,
                f"document at {passage.start:,}, token {passage.offset:,}",
                f"has {number:,} scores that are NaN or infinite; they are not counted",
            )
            for (passage, _, _), number in zip(self.passages, self._unknown.tolist(), strict=True)
            if number
        ]

    def _scores_by_passage(
        self, name: str, heads: int, scores: Mapping[str, RowScores]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values and whether they count, each (statistics, heads, tokens), in passage order."""
        values = torch.zeros(len(STATISTICS), heads, len(self._places))
        counted = torch.zeros(values.shape, dtype=torch.bool)
        for at, statistic in enumerate(STATISTICS):
            if statistic not in scores:
                continue
            found = scores[statistic]
            if found.values.shape != (self._shape[0], heads, self._shape[1]):
                raise ShapeError(
                    f"{statistic} of {name}: expected shape (rows, heads, tokens) = "
                    f"{(self._shape[0], heads, self._shape[1])}, got {tuple(found.values.shape)}"
                )
            for target, given in ((values, found.values), (counted, found.counted.expand_as(found.values))):
                flat = given.detach().to("cpu", target.dtype).transpose(0, 1).reshape(heads, -1)
                target[at] = flat if self._ordered else flat[:, self._places]
        return values.numpy(), counted.numpy()

    def _reduce_passages(self, reduction: np.ufunc, values: NDArray, dtype: type | None = None) -> NDArray:
        """Reduce (statistics, heads, tokens) to (statistics, heads, passages)."""
        return reduction.reduceat(values, self._starts, axis=-1, dtype=dtype)

    def _strongest_positions(
        self, values: NDArray[np.float32], counted: NDArray[np.bool_], maxima: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """The first query of each passage with its largest value, (statistics, heads, passages)."""
        strongest = counted & (values == np.repeat(maxima, self._lengths, axis=-1))
        return self._reduce_passages(np.minimum, np.where(strongest, self._within, self._lengths.max()))


def _histograms(values: NDArray[np.float32], counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Histograms (heads, NUM_BINS) of values (statistics, heads, tokens), where `counted`."""
    heads = values.shape[1]
    starts = np.arange(heads, dtype=np.int64)[:, None] * NUM_BINS
    found = np.empty(values.shape, np.int64)
    for at, (statistic, bins) in enumerate(STATISTICS.items()):
        np.add(bins.find(values[at]), starts + BIN_OFFSETS[statistic], out=found[at])
    found = np.where(counted, found, heads * NUM_BINS)  # an extra bin for values that do not count
    counts = torch.bincount(torch.from_numpy(found).flatten(), minlength=heads * NUM_BINS + 1)
    return counts[:-1].view(heads, NUM_BINS).numpy()


def _example(placed: PlacedPassage, pieces: Sequence[str]) -> StoredPassage:
    passage = placed.passage
    if len(pieces) != len(passage.ids):
        raise ShapeError(
            f"expected one text for each of the {len(passage.ids):,} tokens of a passage, got {len(pieces):,}"
        )
    ends = tuple(accumulate(map(len, pieces)))
    return StoredPassage(passage.file, passage.start, passage.offset, tuple(passage.ids), "".join(pieces), ends)
