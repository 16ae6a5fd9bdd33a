"""From scores of single queries, a batch of passages at a time, to what is known of a shard.

    begin(batch, numbers, texts)      passages and their tokens
    add(layer, heads, scores)         once for each layer
    finish()                          once all layers are there

In: batches and `RowScores`. Out: a `Partial`. The same passages give the same bits: sums are taken by numpy, passage by
passage, whatever the number of threads. Does not know: models, files. Memory: the scores of one layer and batch, in
doubles, and what a partial holds.
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
from attnscope.survey.corpus.batches import Batch, Placed
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.tally.examples import Example, Examples, Sample, Top, lots_of, referred
from attnscope.survey.tally.moments import Moments
from attnscope.survey.tally.partial import Partial, Problems
from attnscope.survey.tally.statistics import NUM_BINS, STARTS, STATISTICS


class Gathering:
    """What is known of a shard while it is read."""

    def __init__(self, seed: int):
        self._seed = seed
        self._heads: dict[str, tuple[int, ...]] = {}
        self._moments: dict[str, Moments] = {}
        self._tops: dict[str, Top] = {}
        self._sample: Sample | None = None
        self._passages: dict[int, Example] = {}
        self._problems: list[Problem] = []
        self._num_tokens = self._num_passages = 0
        self._current: _Current | None = None

    def begin(self, batch: Batch, numbers: Sequence[int], texts: Sequence[Sequence[str]]) -> None:
        """Take up the passages of a batch: their ids (see `passage_id`), and for each the texts of its tokens."""
        assert self._current is None, "finish the batch before"
        self._current = _Current(batch, numbers)
        for placed, number, pieces in zip(batch.passages, numbers, texts, strict=True):
            self._passages[number] = _example(placed, pieces)
            self._num_tokens += len(placed.passage.ids)
        self._num_passages += len(batch.passages)

    def add(self, name: str, heads: Sequence[int], scores: Mapping[str, RowScores]) -> None:
        """Count what the heads of a layer do in this batch; a statistic that is not among the scores is unknown."""
        assert self._current is not None, "begin a batch first"
        if self._heads.setdefault(name, tuple(heads)) != tuple(heads):
            raise ShapeError(f"{name} has the heads {list(heads)} in this batch and {list(self._heads[name])} before")
        found = self._current.counted(name, len(heads), scores)
        self._moments[name] = self._moments[name].plus(found.moments) if name in self._moments else found.moments
        self._tops[name] = self._tops.get(name, Top.empty(len(heads))).plus(
            Top.among(self._current.numbers, found.means, found.positions)
        )

    def finish(self) -> None:
        """Choose examples, now that all layers are there, and forget the other passages of the batch."""
        assert self._current is not None, "begin a batch first"
        current, self._current = self._current, None
        if list(current.means) != list(self._heads):
            differing = sorted(current.means.keys() ^ self._heads.keys()) or list(current.means)
            raise ShapeError(
                f"the layers of this batch are not those of the batch before: they differ in {', '.join(differing[:3])}"
            )
        lots = lots_of(self._seed, current.numbers.tolist())
        found = Sample(lots, current.numbers, np.concatenate(list(current.means.values()), 1))
        self._sample = (self._sample or Sample.empty(found.means.shape[1])).plus(found)
        self._passages = referred(self._passages, list(self._tops.values()), self._sample)
        self._problems += current.problems()

    def partial(self, shard: int, digest: str, *, documents: int, problems: Iterable[Problem] = ()) -> Partial:
        """All of a shard; `digest` tells what was read in it."""
        assert self._current is None, "finish the batch before"
        empty = Partial.empty()
        if self._sample is None:
            examples = empty.examples
        else:
            top = Top(*map(np.concatenate, zip(*self._tops.values(), strict=True)))
            examples = Examples.of(top, self._sample, self._passages)
        return Partial(
            layers=tuple(name for name, heads in self._heads.items() for _ in heads),
            heads=tuple(head for heads in self._heads.values() for head in heads),
            moments=Moments.stacked([self._moments[name] for name in self._heads]),
            examples=examples,
            tokens=self._num_tokens,
            passages=self._num_passages,
            documents=documents,
            problems=Problems.of([*problems, *self._problems]),
            digests={shard: digest},
        )


class _Counted(NamedTuple):
    """What one layer does in one batch; the last two are (passages, heads, statistics)."""

    moments: Moments
    means: NDArray[np.float32]
    positions: NDArray[np.int64]


class _Current:
    """A batch that is being gathered: which of its tokens belong to which passage, and the means of each."""

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
        self._ordered = np.array_equal(places, np.arange(batch.ids.numel()))  # already passage after passage
        self._places = torch.from_numpy(places)
        self._unknown = np.zeros(len(batch.passages), np.int64)

    def counted(self, name: str, heads: int, scores: Mapping[str, RowScores]) -> _Counted:
        """Sums, histograms, means and strongest queries of a layer; arrays here are (statistics, heads, ...)."""
        values, counted = self._in_order(name, heads, scores)
        finite = np.isfinite(values)
        self._unknown += self._by_passage(np.add, counted & ~finite, np.int64).sum((0, 1))
        counted &= finite
        values = np.where(counted, values, np.float32(0.0))
        doubles = values.astype(np.float64)
        counts = self._by_passage(np.add, counted, np.int64)
        totals = self._by_passage(np.add, doubles)
        largest = self._by_passage(np.maximum, np.where(counted, values, np.float32(-np.inf)))
        moments = Moments(
            counts=counts.sum(-1).T,
            totals=totals.sum(-1).T,
            squares=self._by_passage(np.add, np.square(doubles, out=doubles)).sum(-1).T,
            histograms=_histograms(values, counted),
            smallest=np.where(counted, values, np.float32(np.inf)).min(-1).T,
            largest=largest.max(-1).T,
            passages=(counts > 0).sum(-1).T,
            squared_totals=(totals * totals).sum(-1).T,
            squared_counts=(counts * counts).sum(-1).T,
            products=(totals * counts).sum(-1).T,
        )
        means = (totals / np.where(counts, counts, np.nan)).astype(np.float32)
        self.means[name] = means.T
        return _Counted(moments, means.T, self._strongest(values, counted, largest).T)

    def problems(self) -> list[Problem]:
        """Passages with scores that are no numbers, which are not counted."""
        return [
            Problem(
                passage.file,
                f"document at {passage.start:,}, token {passage.offset:,}",
                f"{number:,} scores of its queries are no finite numbers and are not counted",
            )
            for (passage, _, _), number in zip(self.passages, self._unknown.tolist(), strict=True)
            if number
        ]

    def _in_order(
        self, name: str, heads: int, scores: Mapping[str, RowScores]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values and which count, each (statistics, heads, tokens), passage after passage."""
        values = torch.zeros(len(STATISTICS), heads, len(self._places))
        counted = torch.zeros(values.shape, dtype=torch.bool)
        for at, statistic in enumerate(STATISTICS):
            if statistic not in scores:
                continue
            found = scores[statistic]
            if found.values.shape != (self._shape[0], heads, self._shape[1]):
                raise ShapeError(
                    f"{statistic} of {name} is {tuple(found.values.shape)}, where (rows, heads, tokens) of the batch "
                    f"are {(self._shape[0], heads, self._shape[1])}"
                )
            for target, given in ((values, found.values), (counted, found.counted.expand_as(found.values))):
                flat = given.detach().to("cpu", target.dtype).transpose(0, 1).reshape(heads, -1)
                target[at] = flat if self._ordered else flat[:, self._places]
        return values.numpy(), counted.numpy()

    def _by_passage(self, reduction: np.ufunc, values: NDArray, dtype: type | None = None) -> NDArray:
        """(statistics, heads, passages) from tokens, each passage in its own order."""
        return reduction.reduceat(values, self._starts, axis=-1, dtype=dtype)

    def _strongest(
        self, values: NDArray[np.float32], counted: NDArray[np.bool_], largest: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """(statistics, heads, passages): the first query of each passage that has its largest value."""
        strongest = counted & (values == np.repeat(largest, self._lengths, axis=-1))
        return self._by_passage(np.minimum, np.where(strongest, self._within, self._lengths.max()))


def _histograms(values: NDArray[np.float32], counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(heads, NUM_BINS) of values (statistics, heads, tokens) that count."""
    heads = values.shape[1]
    starts = np.arange(heads, dtype=np.int64)[:, None] * NUM_BINS
    found = np.empty(values.shape, np.int64)
    for at, (statistic, bins) in enumerate(STATISTICS.items()):
        np.add(bins.find(values[at]), starts + STARTS[statistic], out=found[at])
    found = np.where(counted, found, heads * NUM_BINS)  # one bin more, for what does not count
    counts = torch.bincount(torch.from_numpy(found).flatten(), minlength=heads * NUM_BINS + 1)
    return counts[:-1].view(heads, NUM_BINS).numpy()


def _example(placed: Placed, pieces: Sequence[str]) -> Example:
    passage = placed.passage
    if len(pieces) != len(passage.ids):
        raise ShapeError(f"{len(pieces):,} texts of tokens arrived for a passage of {len(passage.ids):,} tokens")
    ends = tuple(accumulate(map(len, pieces)))
    return Example(passage.file, passage.start, passage.offset, tuple(passage.ids), "".join(pieces), ends)
