"""The benchmark of merging runs, and its predictions follow from the shape of the tree."""

import pytest

from benchmarks.__main__ import run
from benchmarks.survey_merge import Steps, extrapolate


@pytest.mark.slow
def test_the_benchmark_compares_one_by_one_with_a_tree() -> None:
    compared, steps, predicted = run("survey_merge")
    assert [row[1] for row in compared.rows] == ["20", "2"]
    assert [row[3] for row in steps.rows] == ["8"] * 4 + ["128", "128", "160"]
    assert [row[0] for row in predicted.rows] == ["1,000", "10,000", "100,000"]


def test_predictions_count_every_file_once() -> None:
    """With 64 in a group: 1,000 shards have 16 groups; 10,000 have 157 in 3; 100,000 have 1,563 in 25."""
    predicted = extrapolate(64, Steps(shard=1.0, save=0.0, group=10.0, largest=100.0))
    driver = ["160 s", "300 s", "41.7 min"]
    assert [row[2] for row in predicted.rows] == driver
    without = extrapolate(64, Steps(shard=0.0, save=1.0, group=0.0, largest=0.0))
    assert [row[3] for row in without.rows] == ["16 s", "160 s", "26.5 min"]
