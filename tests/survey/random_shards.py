"""Shards that were never read: passages of random lengths, and scores of random queries."""

from collections.abc import Sequence

import numpy as np
import torch

from attnscope.heads.rows import RowScores
from attnscope.survey.corpus.batches import Batch, PlacedPassage
from attnscope.survey.corpus.passages import Passage
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.accumulator import ShardAccumulator
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.partials.examples import passage_id
from attnscope.survey.partials.partial import PartialResult

LAYERS = {"layers.0.attention": (0, 1), "layers.1.attention": (0, 2, 3)}

Scores = dict[str, dict[str, RowScores]]


def batch_of(lengths: Sequence[Sequence[int]], file: str = "corpus.txt") -> Batch:
    """A batch whose rows have passages of these lengths, one after the other."""
    width = max(map(sum, lengths))
    placed = [
        PlacedPassage(Passage(list(range(7, 7 + length)), file, 100 * row, sum(its[:at])), row, sum(its[:at]))
        for row, its in enumerate(lengths)
        for at, length in enumerate(its)
    ]
    return Batch(torch.zeros(len(lengths), width, dtype=torch.int64), None, placed)


def scores_of(batch: Batch, random: np.random.Generator, *, levels: int | None = None) -> Scores:
    """Random scores, of which some count; with `levels`, so few different ones that many are equal."""
    rows, tokens = batch.ids.shape
    found: Scores = {}
    for layer, heads in LAYERS.items():
        found[layer] = {}
        for statistic, bins in STATISTICS.items():
            shape = rows, len(heads), tokens
            spread = np.exp(random.uniform(np.log(bins.floor / 3), np.log(bins.ceiling), shape))
            values = spread if levels is None else random.integers(0, levels, shape) / levels
            counted = torch.from_numpy(random.random((rows, 1, tokens)) < 0.7)
            found[layer][statistic] = RowScores(torch.from_numpy(values).float(), counted)
    return found


def texts_of(batch: Batch) -> list[list[str]]:
    """Made-up texts of tokens, some of which are outside of ASCII."""
    return [[f"{token}é "[token % 2 :] for token in placed.passage.ids] for placed in batch.passages]


def shard_of(number: int, seed: int, *, batches: int = 2, levels: int | None = None) -> PartialResult:
    """What is gathered from a random shard; without batches it has no passage."""
    random = np.random.default_rng([seed, number])
    accumulator, passages = ShardAccumulator(seed=0), 0
    for _ in range(batches):
        batch = batch_of([random.integers(2, 9, random.integers(1, 4)).tolist() for _ in range(2)], f"{number}.txt")
        numbers = [passage_id(number, passages + at) for at in range(len(batch.passages))]
        accumulate_batch(accumulator, batch, numbers, scores_of(batch, random, levels=levels))
        passages += len(numbers)
    problems = [Problem(f"{number % 3}.txt", f"byte {place:,}", "broken") for place in random.integers(0, 5000, 3)]
    return accumulator.to_partial(number, f"digest {number}", documents=batches, problems=problems)


def accumulate_batch(accumulator: ShardAccumulator, batch: Batch, numbers: Sequence[int], scores: Scores) -> None:
    """The three calls."""
    accumulator.begin_batch(batch, numbers, texts_of(batch))
    for layer, heads in LAYERS.items():
        accumulator.add_layer(layer, heads, scores[layer])
    accumulator.finish_batch()


SUMS = {"sums", "squares", "squared_sums", "sum_count_products"}
"""What is rounded, and so depends on the order of merging."""


def assert_same(one: PartialResult, other: PartialResult, *, tolerance: float) -> None:
    """Both have the same content: sums within a relative tolerance, all else bit for bit."""
    for name in ("layers", "heads", "tokens", "passages", "documents", "problems"):
        assert getattr(one, name) == getattr(other, name), name
    assert list(one.digests.items()) == list(other.digests.items())
    assert list(one.examples.passages.items()) == list(other.examples.passages.items())
    for group, its, others in (
        ("moments", one.moments, other.moments),
        ("top", one.examples.top, other.examples.top),
        ("sample", one.examples.sample, other.examples.sample),
    ):
        for name, mine, yours in zip(its._fields, its, others, strict=True):
            assert (mine.dtype, mine.shape) == (yours.dtype, yours.shape), f"{group}.{name}"
            if name in SUMS and tolerance:
                np.testing.assert_allclose(mine, yours, rtol=tolerance, atol=0, err_msg=f"{group}.{name}")
            else:
                assert mine.tobytes() == yours.tobytes(), f"{group}.{name}"
