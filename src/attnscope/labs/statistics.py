"""Means with their standard errors.

In: one number per seed, draw or passage. Out: the mean and its standard error. Does not know: what was measured.
Memory: O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple


class Mean(NamedTuple):
    """A mean and its standard error; printed as "1.5 ± 0.5"."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.3g}"


def mean_with_error(values: Sequence[float]) -> Mean:
    """Return the mean of two or more values, and its standard error.

    >>> str(mean_with_error([1.0, 2.0]))
    '1.5 ± 0.5'
    """
    return Mean(fmean(values), stdev(values) / len(values) ** 0.5)
