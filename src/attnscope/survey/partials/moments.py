"""Sums, counts and histograms over the queries of a corpus, per head and statistic.

In: arrays of two shards. Out: arrays of both; means, standard deviations, and standard errors that treat each passage
as one sample, because queries of the same passage are correlated. Does not know: examples, files. Memory: 24 KB per
head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.survey.partials.bins import NUM_BINS, STATISTICS


class Moments(NamedTuple):
    """Arrays (heads, statistics) in the order of `STATISTICS`; the histograms are (heads, NUM_BINS)."""

    counts: NDArray[np.int64]
    """The number of queries that have a value."""
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]
    histograms: NDArray[np.int64]
    minima: NDArray[np.float32]
    maxima: NDArray[np.float32]
    passages: NDArray[np.int64]
    """The number of passages with such queries. The fields below are sums over passages, for the standard error."""
    squared_sums: NDArray[np.float64]
    squared_counts: NDArray[np.int64]
    sum_count_products: NDArray[np.float64]
    """The sum over passages of their sum times their count."""

    @staticmethod
    def zeros(heads: int) -> Moments:
        """The neutral element of `merge`."""
        shape = heads, len(STATISTICS)
        whole, real = np.zeros(shape, np.int64), np.zeros(shape)
        return Moments(
            counts=whole,
            sums=real,
            squares=real,
            histograms=np.zeros((heads, NUM_BINS), np.int64),
            minima=np.full(shape, np.inf, np.float32),
            maxima=np.full(shape, -np.inf, np.float32),
            passages=whole,
            squared_sums=real,
            squared_counts=whole,
            sum_count_products=real,
        )

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of queries."""
        combine = {"minima": np.minimum, "maxima": np.maximum}
        both = zip(self._fields, self, other, strict=True)
        return Moments(*(combine.get(name, np.add)(mine, yours) for name, mine, yours in both))

    @staticmethod
    def concatenate(layers: list[Moments]) -> Moments:
        """The moments of the heads of several layers."""
        return Moments(*map(np.concatenate, zip(*layers, strict=True))) if layers else Moments.zeros(0)

    @property
    def means(self) -> NDArray[np.float64]:
        """Means (heads, statistics) over all queries that have a value; NaN without any."""
        return self.sums / _nan_below(self.counts, 1)

    @property
    def stds(self) -> NDArray[np.float64]:
        """Standard deviations (heads, statistics) over queries."""
        variance = self.squares / _nan_below(self.counts, 1) - self.means**2
        return np.sqrt(np.maximum(variance, 0.0))  # rounding may make it negative

    @property
    def standard_errors(self) -> NDArray[np.float64]:
        """Standard errors (heads, statistics) of the means, with passages as samples; NaN below two passages.

        A mean is a ratio of two sums over passages. Its linearised error is that of sum - mean * count over passages.
        """
        means = self.means
        residuals = self.squared_sums - 2 * means * self.sum_count_products + means**2 * self.squared_counts
        passages = _nan_below(self.passages, 2)
        return np.sqrt(np.maximum(residuals, 0.0) * passages / (passages - 1)) / self.counts.clip(1)


def _nan_below(numbers: NDArray[np.int64], minimum: int) -> NDArray[np.float64]:
    return np.where(numbers >= minimum, numbers, np.nan)
