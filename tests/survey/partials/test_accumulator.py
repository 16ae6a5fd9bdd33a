"""What is gathered from batches is what a plain loop over queries finds."""

import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.errors import ShapeError
from attnscope.heads.rows import RowScores
from attnscope.survey.corpus.batches import Batch, PlacedPassage
from attnscope.survey.corpus.passages import Passage
from attnscope.survey.partials.accumulator import ShardAccumulator
from attnscope.survey.partials.batch_sums import PassageLayout, reduce_layer
from attnscope.survey.partials.bins import NUM_BINS, STATISTICS, _tables, select_bins
from attnscope.survey.partials.examples import passage_id
from benchmarks.gpu_survey import GATHERING_BYTES, GATHERING_LAUNCHES
from tests.devices.fake_cuda import count_work, fake_cuda
from tests.survey.random_shards import (
    LAYERS,
    Scores,
    accumulate_batch,
    assert_same,
    batch_of,
    scores_of,
    shard_of,
    texts_of,
)

ROUNDING = 1e-12
SECONDS = 0.8


def plain(batches: list[Batch], scores: list[Scores]) -> dict[tuple[str, int, str], list[list[tuple[int, float]]]]:
    """For each layer, head and statistic the places and values of the queries that count, passage by passage."""
    found: dict[Any, list[list[tuple[int, float]]]] = defaultdict(list)
    for batch, its in zip(batches, scores, strict=True):
        for placed in batch.passages:
            for layer, heads in LAYERS.items():
                for at, head in enumerate(heads):
                    for statistic, (values, counted) in its[layer].items():
                        queries = range(placed.start, placed.start + len(placed.passage.ids))
                        found[layer, head, statistic].append(
                            [
                                (query - placed.start, float(values[placed.row, at, query]))
                                for query in queries
                                if counted[placed.row, 0, query]
                            ]
                        )
    return found


@pytest.fixture(
    params=[[[[5, 3], [8]], [[4], [4]]], [[[6], [6], [6]]], [[[2, 2, 3], [4, 2]]]],
    ids=["packed", "rows", "gaps"],
)
def batches(request: pytest.FixtureRequest) -> list[Batch]:
    """Rows of one passage, of several, and with tokens that belong to none."""
    return [batch_of(lengths) for lengths in request.param]


@pytest.mark.parametrize("levels", [None, 3])
def test_everything_is_as_a_plain_loop_finds_it(batches: list[Batch], levels: int | None) -> None:
    random = np.random.default_rng(0)
    scores = [scores_of(batch, random, levels=levels) for batch in batches]
    accumulator, number = ShardAccumulator(seed=0), 0
    for batch, its in zip(batches, scores, strict=True):
        accumulate_batch(accumulator, batch, [passage_id(3, number + at) for at in range(len(batch.passages))], its)
        number += len(batch.passages)
    partial = accumulator.to_partial(3, "digest", documents=7)
    moments, top = partial.moments, partial.examples.top
    for (layer, head, statistic), passages in plain(batches, scores).items():
        row = list(zip(partial.layers, partial.heads, strict=True)).index((layer, head))
        at = row, list(STATISTICS).index(statistic)
        values = [value for queries in passages for _, value in queries]
        sums = [sum(value for _, value in queries) for queries in passages]
        assert moments.counts[at] == len(values) > 0
        assert moments.sums[at] == pytest.approx(sum(values), rel=ROUNDING)
        assert moments.squares[at] == pytest.approx(sum(value**2 for value in values), rel=ROUNDING)
        assert (moments.minima[at], moments.maxima[at]) == (min(values), max(values))
        assert moments.passages[at] == sum(bool(queries) for queries in passages)
        assert moments.squared_sums[at] == pytest.approx(sum(each**2 for each in sums), rel=ROUNDING)
        assert moments.squared_counts[at] == sum(len(queries) ** 2 for queries in passages)
        sum_count_products = sum(each * len(queries) for each, queries in zip(sums, passages, strict=True))
        assert moments.sum_count_products[at] == pytest.approx(sum_count_products, rel=ROUNDING)
        bins = STATISTICS[statistic]
        edges = [-np.inf, *bins.edges[:-1], np.inf]
        counts = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
        assert select_bins(moments.histograms, statistic)[row].tolist() == counts
        means = [(-np.float32(np.mean([value for _, value in q])), n) for n, q in enumerate(passages) if q]
        best = sorted(means)[: top.scores.shape[-1]]
        assert top.passages[at][: len(best)].tolist() == [passage_id(3, n) for _, n in best]
        np.testing.assert_array_equal(top.scores[at][: len(best)], [-score for score, _ in best])
        strongest = [max(passages[n], key=lambda query: (query[1], -query[0]))[0] for _, n in best]
        assert top.positions[at][: len(best)].tolist() == strongest
    assert (partial.passages, partial.documents) == (number, 7)
    assert partial.tokens == sum(len(placed.passage.ids) for batch in batches for placed in batch.passages)


def test_a_statistic_that_is_not_told_counts_nothing() -> None:
    batch = batch_of([[4, 4]])
    scores = scores_of(batch, np.random.default_rng(0))
    for its in scores.values():
        del its["next"]
    accumulator = ShardAccumulator(seed=0)
    accumulate_batch(accumulator, batch, [0, 1], scores)
    partial = accumulator.to_partial(0, "digest", documents=1)
    column = list(STATISTICS).index("next")
    assert not partial.moments.counts[:, column].any()
    assert not select_bins(partial.moments.histograms, "next").any()
    assert np.isnan(partial.examples.sample.means[..., column]).all()
    assert (partial.examples.top.positions[:, column] == -1).all()
    assert partial.moments.counts[:, :column].all()


def test_scores_that_are_no_numbers_are_not_counted_and_become_a_problem_of_their_passage() -> None:
    batch = batch_of([[4, 4]])
    scores = scores_of(batch, np.random.default_rng(0))
    every = torch.ones(1, 1, 8, dtype=torch.bool)
    clean = scores["layers.0.attention"]["sink"].values
    damaged = clean.clone()
    damaged[0, 0, 5], damaged[0, 1, 6] = torch.nan, torch.inf
    scores["layers.0.attention"]["sink"] = RowScores(damaged, every)
    scores["layers.0.attention"]["self"] = RowScores(damaged, every & False)
    accumulator = ShardAccumulator(seed=0)
    accumulate_batch(accumulator, batch, [0, 1], scores)
    partial = accumulator.to_partial(0, "digest", documents=1)
    sink = list(STATISTICS).index("sink")
    assert partial.moments.counts[:2, sink].tolist() == [7, 7]
    assert partial.moments.sums[0, sink] == pytest.approx(float(clean[0, 0, [0, 1, 2, 3, 4, 6, 7]].double().sum()))
    assert [(problem.location, problem.reason[:8]) for problem in partial.problems.first] == [
        ("document at 0, token 4", "has 2 sc")
    ]


def test_a_shard_without_passages_knows_no_heads() -> None:
    partial = shard_of(4, 0, batches=0)
    assert (partial.layers, partial.tokens, partial.examples.passages) == ((), 0, {})
    assert partial.digests == {4: "digest 4"}
    assert partial.problems.count == 3


def test_the_same_shard_gives_the_same_bits_on_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = shard_of(1, 0, batches=5)
        torch.set_num_threads(2)
        assert_same(shard_of(1, 0, batches=5), alone, tolerance=0.0)
    finally:
        torch.set_num_threads(threads)


def test_batches_of_other_layers_heads_or_shapes_are_refused() -> None:
    batch = batch_of([[4, 4]])
    scores = scores_of(batch, np.random.default_rng(0))
    accumulator = ShardAccumulator(seed=0)
    accumulate_batch(accumulator, batch, [0, 1], scores)
    accumulator.begin_batch(batch, [2, 3], texts_of(batch))
    with pytest.raises(ShapeError, match=r"layers.*\[0, 1\].*\[0\]"):
        accumulator.add_layer("layers.0.attention", [0], scores["layers.0.attention"])
    with pytest.raises(ShapeError, match=r"previous of layers.1.attention.*\(1, 2, 8\)"):
        accumulator.add_layer("layers.1.attention", (0, 2, 3), scores["layers.0.attention"])
    accumulator.add_layer("layers.0.attention", (0, 1), scores["layers.0.attention"])
    with pytest.raises(ShapeError, match=r"layers.1.attention"):
        accumulator.finish_batch()
    with pytest.raises(ShapeError, match=r"4 tokens.* got 3"):
        ShardAccumulator(seed=0).begin_batch(batch, [0, 1], [["a"] * 3, ["b"] * 4])


def test_a_layer_is_reduced_on_its_device_in_few_kernels_and_without_a_wait() -> None:
    heads, tokens, passages = 32, 2048, 4
    shape = len(STATISTICS), heads, tokens
    with fake_cuda():
        _tables.cache_clear()
        lengths, numbers, within = (
            torch.empty(size, dtype=torch.long, device="cuda") for size in (passages, tokens, tokens)
        )
        layout = PassageLayout(lengths, numbers, within, places=None)
        given = torch.empty(shape, device="cuda"), torch.empty(shape, dtype=torch.bool, device="cuda")
        reduce_layer(*given, layout)  # copies the tables of bins
        found, work = count_work(lambda: reduce_layer(*given, layout))
        _tables.cache_clear()
    assert work.waits == {}
    assert work.num_kernels <= GATHERING_LAUNCHES
    assert work.num_bytes <= GATHERING_BYTES * given[0].numel()
    assert found.histograms.numel() == heads * NUM_BINS
    others = sum(values.nbytes for values in found if values is not found.histograms)
    assert others <= 0.03 * given[0].nbytes  # with the histograms, all that leaves the device


@pytest.mark.timed
def test_the_heads_of_a_small_model_are_gathered_in_less_than_a_second() -> None:
    passages = [PlacedPassage(Passage(list(range(512)), "corpus.txt", 0, 512 * row), row, 0) for row in range(4)]
    batch = Batch(torch.zeros(4, 512, dtype=torch.int64), None, passages)
    every = torch.rand(4, 1, 512) < 0.9
    layers = [{name: RowScores(torch.rand(4, 9, 512), every) for name in STATISTICS} for _ in range(30)]
    accumulator, took, threads = ShardAccumulator(seed=0), [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for turn in range(3):
            start = time.thread_time()
            accumulator.begin_batch(batch, range(4 * turn, 4 * turn + 4), [["word "] * 512] * 4)
            for number, scores in enumerate(layers):
                accumulator.add_layer(f"layers.{number}", range(9), scores)
            accumulator.finish_batch()
            took.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    assert min(took) < SECONDS
