"""The cost of merging the partial results of a survey: one by one, and as the tree that surveys use.

The partial results have the shape of SmolLM2 and random numbers: no model is run. All times are CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from attnscope.formatting import format_bytes
from attnscope.models.published_configs import DECODERS
from attnscope.survey.execution.merge_tree import GROUP_SIZE, Group, merge_group, missing_groups, save_group
from attnscope.survey.folder import PARTIALS, SurveyFolder
from attnscope.survey.partials.bins import NUM_BINS, STATISTICS
from attnscope.survey.partials.examples import (
    NUM_TOP,
    Examples,
    PassageSample,
    StoredPassage,
    TopPassages,
    passage_id,
    sampling_priorities,
)
from attnscope.survey.partials.moments import Moments
from attnscope.survey.partials.partial import PartialResult, Problems, merge_partials
from attnscope.survey.partials.partial_files import load_partial, save_partial

SHAPE, WORKERS = "smollm2-135m", 2
EXTRAPOLATED = (1_000, 10_000, 100_000)


class Corpus(NamedTuple):
    """What the partial results are of."""

    shards: int
    passages: int
    """In each shard."""
    length: int
    """Tokens of a passage."""
    layers: int
    heads: int
    """In each layer."""
    group_size: int


class Steps(NamedTuple):
    """CPU seconds of each step, and what a file holds."""

    shard: float
    """To load and merge the partial result of one shard: the mean of the last quarter."""
    save: float
    """To save a group of shards."""
    group: float
    """To load and merge a group of shards."""
    largest: float
    """To load the result of all."""


FULL = Corpus(512, 256, 512, DECODERS[SHAPE].num_layers, DECODERS[SHAPE].num_heads, GROUP_SIZE)
SMALL = Corpus(20, 8, 16, 2, 4, 4)


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    corpus = size.choose(small=SMALL, full=FULL)
    with TemporaryDirectory() as place:
        folder, whole = SurveyFolder(place), Group(0, corpus.shards, corpus.group_size)
        (Path(place) / PARTIALS).mkdir()
        for number in range(corpus.shards):
            if number % 16 == 0:
                step(f"writing partial result {number:,} of {corpus.shards:,}")
            save_partial(random_partial(number, corpus), folder.partial_path(number))
        step("merging one by one")
        quarters, one_by_one = merge_one_by_one(corpus, folder)
        step(f"merging groups in {WORKERS} processes")
        workers = merge_groups(whole, folder)
        step("merging the last level")
        start = time.process_time()
        merged = merge_group(whole, folder)
        last_level = time.process_time() - start
        check_equal(merged, one_by_one)
        table = Table(
            title=f"{corpus.shards:,} partial results of {corpus.layers * corpus.heads:,} heads",
            comparison=f"CPU time; {corpus.passages:,} random passages of {corpus.length:,} tokens per shard, groups "
            f"of {corpus.group_size}, {WORKERS} worker processes",
            columns=("merged", "files that the driver reads", "driver", "all workers"),
        )
        table.add("one by one", f"{corpus.shards:,}", duration(sum(quarters)), duration(0.0))
        table.add("as a tree", f"{len(whole.inputs):,}", duration(last_level), duration(workers))
        yield table
        step("measuring each step")
        found = measure_steps(whole, folder, merged, 4 * quarters[-1] / corpus.shards)
        yield steps_table(corpus, folder, whole, found, quarters)
        yield extrapolate(corpus.group_size, found)


def merge_one_by_one(corpus: Corpus, folder: SurveyFolder) -> tuple[list[float], PartialResult]:
    """Load and merge all shards in this process; return the CPU seconds of each quarter of them."""
    marks = [time.process_time()]

    def load() -> Iterator[PartialResult]:
        for number in range(corpus.shards):
            yield load_partial(folder.partial_path(number))
            if (number + 1) % (corpus.shards // 4) == 0:
                marks.append(time.process_time())  # the loaded one has been merged

    merged = merge_partials(load())
    return np.diff(marks).tolist(), merged


def merge_groups(whole: Group, folder: SurveyFolder) -> float:
    """Merge all groups in worker processes, level by level; return their CPU seconds."""
    total = 0.0
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for level in missing_groups(whole, folder):
            total += sum(pool.map(save_in_worker, level, [str(folder.path)] * len(level)))
    return total


def save_in_worker(group: Group, folder: str) -> float:
    """Merge a group, and return the CPU seconds."""
    start = time.process_time()
    save_group(group, SurveyFolder(folder))
    return time.process_time() - start


def check_equal(tree: PartialResult, one_by_one: PartialResult) -> None:
    """Raise unless both have the same integers, extremes and examples."""
    for name in ("counts", "histograms", "minima", "maxima", "passages", "squared_counts"):
        assert np.array_equal(getattr(tree.moments, name), getattr(one_by_one.moments, name)), name
    assert np.array_equal(tree.examples.top.passages, one_by_one.examples.top.passages)
    assert tree.examples.passages == one_by_one.examples.passages


def measure_steps(whole: Group, folder: SurveyFolder, merged: PartialResult, shard: float) -> Steps:
    """Measure how long groups and the result of all shards take to save, load and merge."""
    groups = [each for each in whole.inputs if not each.is_shard]
    paths = [folder.group_path(each.start, each.stop) for each in groups]
    marks = [time.process_time()]
    loaded = [load_partial(path) for path in paths[:2]]
    merge_partials(loaded)
    marks.append(time.process_time())
    save_partial(loaded[0], folder.path / "group")
    marks.append(time.process_time())
    save_partial(merged, folder.path / "all")
    marks.append(time.process_time())
    load_partial(folder.path / "all")
    marks.append(time.process_time())
    group, save, _, largest = np.diff(marks).tolist()
    return Steps(shard, save, group / 2, largest)


def steps_table(corpus: Corpus, folder: SurveyFolder, whole: Group, steps: Steps, quarters: list[float]) -> Table:
    """The cost of each step, and how it changes with what has been merged before."""
    table = Table(
        title="each step",
        comparison="CPU time and size of files",
        columns=("step", "CPU time", "file", "passages in it"),
    )
    first = next(each for each in whole.inputs if not each.is_shard)
    files = {
        "shard": folder.partial_path(0),
        "group": folder.group_path(first.start, first.stop),
        "all": folder.path / "all",
    }
    about = {}
    for name, path in files.items():
        content = Path(str(path))
        about[name] = format_bytes(content.stat().st_size), f"{len(load_partial(content).examples.passages):,}"
    for quarter, spent in enumerate(quarters, start=1):
        each = 4 * spent / corpus.shards
        table.add(f"load and merge one shard, mean of quarter {quarter} of all", duration(each), *about["shard"])
    table.add(f"load and merge one group of {corpus.group_size} shards", duration(steps.group), *about["group"])
    table.add("save one group", duration(steps.save), *about["group"])
    table.add(f"load the result of all {corpus.shards:,} shards", duration(steps.largest), *about["all"])
    return table


def extrapolate(group_size: int, steps: Steps) -> Table:
    """Predict the CPU time of larger surveys, with groups of groups as expensive to load as the largest result."""
    table = Table(
        title="predicted for more partial results",
        comparison="CPU time computed from the steps above, not measured; a group of groups is as expensive as the "
        "result of all shards above",
        columns=("partial results", "driver, one by one", "driver, tree", "all workers, tree"),
    )
    upper = max(steps.group, steps.largest)
    for shards in EXTRAPOLATED:
        driver, workers, above = 0.0, 0.0, [Group(0, shards, group_size)]
        is_driver = True
        while above:
            inputs = [each for group in above for each in group.inputs]
            spent = sum(cost_to_merge(each, group_size, steps, upper) for each in inputs)
            saved = 0.0 if is_driver else steps.save * len(above)
            driver, workers = (spent, workers) if is_driver else (driver, workers + spent + saved)
            above, is_driver = [each for each in inputs if not each.is_shard], False
        table.add(f"{shards:,}", duration(steps.shard * shards), duration(driver), duration(workers))
    return table


def cost_to_merge(group: Group, group_size: int, steps: Steps, upper: float) -> float:
    """CPU seconds to load and merge a shard, a group of shards, or a group of groups."""
    if group.is_shard:
        return steps.shard
    return steps.group if group.stop - group.start <= group_size else upper


def random_partial(number: int, corpus: Corpus) -> PartialResult:
    """The partial result of a shard with random statistics, of which no two passages are alike."""
    random, heads, count = np.random.default_rng(number), corpus.layers * corpus.heads, corpus.passages
    numbers = np.array([passage_id(number, place) for place in range(count)])
    means = random.random((count, heads, len(STATISTICS)), np.float32)
    best = np.argpartition(-means, NUM_TOP, axis=0)[:NUM_TOP]
    best = np.take_along_axis(best, np.argsort(-np.take_along_axis(means, best, 0), axis=0), 0)
    top = TopPassages(
        np.moveaxis(np.take_along_axis(means, best, 0), 0, -1).copy(),
        np.moveaxis(numbers[best], 0, -1).copy(),
        random.integers(0, corpus.length, (heads, len(STATISTICS), NUM_TOP)),
    )
    sample = PassageSample(sampling_priorities(0, numbers.tolist()), numbers, means)
    passages = {}
    for place, each in enumerate(numbers.tolist()):
        ids = tuple(random.integers(0, DECODERS[SHAPE].vocab_size, corpus.length).tolist())
        text, ends = "word" * corpus.length, tuple(range(4, 4 * corpus.length + 1, 4))
        passages[each] = StoredPassage(f"corpus/{number}.txt", 2048 * place, 0, ids, text, ends)
    examples = Examples.select(top, PassageSample.empty(heads).merge(sample), passages)
    tokens = count * corpus.length
    moments = random_moments(random, heads, tokens, count)
    return PartialResult(
        tuple(f"blocks.{layer}.attention" for layer in range(corpus.layers) for _ in range(corpus.heads)),
        tuple(range(corpus.heads)) * corpus.layers,
        moments,
        examples,
        tokens,
        count,
        1,
        Problems((), 0, 0),
        {number: f"{number:064x}"},
    )


def random_moments(random: np.random.Generator, heads: int, tokens: int, passages: int) -> Moments:
    """Random sums, and histograms with about as many counts as there are tokens."""
    shape = heads, len(STATISTICS)
    sums = random.random((4, *shape)) * tokens
    return Moments(
        counts=np.full(shape, tokens),
        sums=sums[0],
        squares=sums[1],
        histograms=np.roll(random_histograms(heads, tokens), random.integers(heads), axis=0),
        minima=random.random(shape, np.float32),
        maxima=random.random(shape, np.float32),
        passages=np.full(shape, passages),
        squared_sums=sums[2],
        squared_counts=np.full(shape, tokens * tokens // passages),
        sum_count_products=sums[3],
    )


@cache
def random_histograms(heads: int, tokens: int) -> NDArray[np.int64]:
    """Random histograms (heads, NUM_BINS)."""
    random = np.random.default_rng(0)
    expected = random.gamma(0.3, size=(heads, NUM_BINS)) * len(STATISTICS) * tokens / NUM_BINS / 0.3
    return random.poisson(expected)
