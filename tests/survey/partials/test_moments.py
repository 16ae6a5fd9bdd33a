"""Means, deviations, and errors that know which queries belong together."""

import numpy as np
import pytest

from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.partials.moments import Moments

BOOTSTRAP = 0.1
ROUNDING = 1e-9


def moments_of(passages: list[np.ndarray]) -> Moments:
    """Of one head whose first statistic has these values in the queries of passages."""
    found = Moments.zeros(1)._asdict()
    sums, counts = np.array([values.sum() for values in passages]), np.array([len(each) for each in passages])
    everything = np.concatenate(passages)
    for name, value in {
        "counts": counts.sum(),
        "sums": sums.sum(),
        "squares": (everything**2).sum(),
        "passages": (counts > 0).sum(),
        "squared_sums": (sums**2).sum(),
        "squared_counts": (counts**2).sum(),
        "sum_count_products": (sums * counts).sum(),
    }.items():
        found[name] = found[name].copy()
        found[name][0, 0] = value
    return Moments(**found)


def correlated_passages(number: int, random: np.random.Generator) -> list[np.ndarray]:
    """Passages of different lengths, each with a level of its own that rises with its length."""
    lengths = random.integers(2, 120, number)
    return [random.beta(2, 5, length) * 0.3 + random.beta(2, 2) * 0.6 + length / 1200 for length in lengths]


@pytest.mark.parametrize("seed", range(3))
def test_the_standard_error_is_that_of_a_bootstrap_over_passages(seed: int) -> None:
    random = np.random.default_rng(seed)
    passages = correlated_passages(300, random)
    sums, counts = np.array([each.sum() for each in passages]), np.array([len(each) for each in passages])
    drawn = random.integers(0, len(passages), (4000, len(passages)))
    bootstrap = (sums[drawn].sum(1) / counts[drawn].sum(1)).std()
    moments = moments_of(passages)
    assert moments.standard_errors[0, 0] == pytest.approx(bootstrap, rel=BOOTSTRAP)
    alone = moments.stds[0, 0] / np.sqrt(moments.counts[0, 0])  # as if every query were for itself
    assert bootstrap > 3 * alone


def test_means_and_deviations_are_those_of_all_queries() -> None:
    passages = correlated_passages(40, np.random.default_rng(0))
    moments = moments_of(passages)
    everything = np.concatenate(passages)
    assert moments.means[0, 0] == pytest.approx(everything.mean(), rel=ROUNDING)
    assert moments.stds[0, 0] == pytest.approx(everything.std(), rel=ROUNDING)


def test_what_nothing_is_known_of_is_nan() -> None:
    one_passage = moments_of([np.array([0.25, 0.75])])
    assert one_passage.means[0, 0] == 0.5
    assert one_passage.stds[0, 0] == 0.25
    assert np.isnan(one_passage.standard_errors[0, 0])
    for numbers in (one_passage.means, one_passage.stds, one_passage.standard_errors):
        assert numbers.shape == (1, len(STATISTICS))
        assert np.isnan(numbers[0, 1:]).all()


def test_equal_numbers_have_no_deviation_and_no_error() -> None:
    moments = moments_of([np.full(length, 0.1) for length in (3, 50, 7)])
    assert moments.stds[0, 0] < 1e-8
    assert moments.standard_errors[0, 0] < 1e-8
