"""Bins that hold what they should, and quantiles that are as close as they claim."""

import math

import numpy as np
import pytest
import torch
from ddsketch.mapping import LogarithmicMapping
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnscope.heads import SCORES
from attnscope.survey.partials.bins import (
    BIN_OFFSETS,
    MAX_KEYS,
    NUM_BINS,
    RELATIVE_ACCURACY,
    STATISTICS,
    Bins,
    find_bins,
    select_bins,
)

SHARES = [0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0]
ROUNDING = 1e-9

FORMATS: list[Bins] = [STATISTICS[name] for name in ("sink", "entropy", "reach", "effective_keys")]
each_kind = pytest.mark.parametrize("bins", FORMATS)


def find(bins: Bins, values: NDArray[np.float32]) -> NDArray[np.int64]:
    """The bins of values of one statistic."""
    name = next(name for name, each in STATISTICS.items() if each == bins)
    found = find_bins(torch.from_numpy(values).expand(len(STATISTICS), -1))
    return found[list(STATISTICS).index(name)].numpy() - BIN_OFFSETS[name]


def plain_find(bins: Bins, value: float) -> int:
    """The bin of a value, by looking at one after the other."""
    for number, edge in enumerate(bins.edges.tolist()):
        if value <= edge:
            return number
    return len(bins) - 1


def test_every_statistic_is_a_score_of_heads() -> None:
    assert STATISTICS.keys() <= SCORES.keys()
    assert set(STATISTICS.values()) == set(FORMATS)
    assert SCORES.keys() - STATISTICS.keys() == {"concentration", "leakage"}


@each_kind
def test_edges_are_the_buckets_of_the_library(bins: Bins) -> None:
    mapping = LogarithmicMapping(RELATIVE_ACCURACY)
    first = mapping.key(bins.floor)
    assert mapping.key(bins.ceiling) == first + len(bins) - 2
    for number, edge in enumerate(bins.edges.tolist()):
        inside, outside = edge * (1 - ROUNDING), edge * (1 + ROUNDING)
        assert (mapping.key(inside), mapping.key(outside)) == (first + number - 1, first + number)
        if number:
            assert mapping.key(bins.centers[number]) == first + number - 1
            assert mapping.value(first + number - 1) == pytest.approx(bins.centers[number], rel=ROUNDING)


@each_kind
def test_a_value_is_found_in_the_bin_that_contains_it_also_beside_edges(bins: Bins) -> None:
    edges = bins.edges.astype(np.float32)
    beside = [np.nextafter(edges, np.float32(side)) for side in (-np.inf, np.inf)]
    random = np.exp(np.random.default_rng(0).uniform(math.log(bins.floor / 10), math.log(bins.ceiling * 10), 5000))
    special = np.array([0.0, -0.0, -1e-9, -5.0, 1e-45, 1.0, 1.0000001, 3e38, bins.floor, bins.ceiling], np.float32)
    values = np.concatenate([edges, *beside, random.astype(np.float32), special])
    found = find(bins, values)
    assert found.tolist() == [plain_find(bins, value) for value in values.astype(np.float64).tolist()]
    assert set(found.tolist()) == set(range(len(bins)))


@each_kind
@given(bits=st.lists(st.integers(0, 0x7F7FFFFF), min_size=1, max_size=50))
def test_any_float_is_found_where_a_search_finds_it(bins: Bins, bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    assert find(bins, values).tolist() == np.searchsorted(bins.limits[:-1], values).tolist()


@each_kind
@pytest.mark.parametrize("size", [1, 2, 10, 5001])
def test_quantiles_are_within_the_accuracy_of_the_exact_ones(bins: Bins, size: int) -> None:
    random = np.random.default_rng(size)
    middle = math.sqrt(bins.floor * bins.ceiling)
    values = np.clip(np.exp(random.normal(math.log(middle), 1.5, size)), bins.floor, bins.ceiling).astype(np.float32)
    counts = np.bincount(find(bins, values), minlength=len(bins))
    exact = np.quantile(values, SHARES, method="lower")
    np.testing.assert_allclose(bins.quantiles(counts, SHARES), exact, rtol=RELATIVE_ACCURACY + ROUNDING)


def test_what_is_below_the_floor_is_zero_and_what_is_above_the_ceiling_is_in_the_last_bin() -> None:
    bins = STATISTICS["reach"]
    values = np.array([0.0, 1e-5, 1e-3, 5.0 * MAX_KEYS, 9.0 * MAX_KEYS], np.float32)
    counts = np.bincount(find(bins, values), minlength=len(bins))
    assert counts[[0, -1]].tolist() == [3, 2]
    assert bins.quantiles(counts, [0.0, 0.5]) == [0.0, 0.0]
    assert bins.quantiles(counts, [1.0])[0] == pytest.approx(MAX_KEYS, rel=2 * RELATIVE_ACCURACY)


def test_the_bins_of_all_statistics_lie_side_by_side() -> None:
    everything = np.arange(NUM_BINS)
    parts = [select_bins(everything, name) for name in STATISTICS]
    assert np.concatenate(parts).tolist() == everything.tolist()
    assert [part[0] for part in parts] == list(BIN_OFFSETS.values())
    assert [len(part) for part in parts] == [len(bins) for bins in STATISTICS.values()]
