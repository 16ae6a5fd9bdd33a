"""What is added up over the queries of a corpus: for each head and statistic, sums, counts and histograms.

In: arrays of two shards. Out: arrays of both; means, deviations, and standard errors that know that the queries of one
passage are alike. Does not know: examples, files. Memory: 24 KB a head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.survey.tally.statistics import NUM_BINS, STATISTICS


class Moments(NamedTuple):
    """Each (heads, statistics), in the order of STATISTICS; the histograms are (heads, NUM_BINS)."""

    counts: NDArray[np.int64]
    """Queries that count."""
    totals: NDArray[np.float64]
    squares: NDArray[np.float64]
    histograms: NDArray[np.int64]
    smallest: NDArray[np.float32]
    largest: NDArray[np.float32]
    passages: NDArray[np.int64]
    """Passages that have such queries. The last three are sums over passages, for the error of the mean."""
    squared_totals: NDArray[np.float64]
    squared_counts: NDArray[np.int64]
    products: NDArray[np.float64]
    """Of total and count."""

    @staticmethod
    def zeros(heads: int) -> Moments:
        """Those of nothing: adding them changes no bit."""
        shape = heads, len(STATISTICS)
        whole, real = np.zeros(shape, np.int64), np.zeros(shape)
        return Moments(
            counts=whole,
            totals=real,
            squares=real,
            histograms=np.zeros((heads, NUM_BINS), np.int64),
            smallest=np.full(shape, np.inf, np.float32),
            largest=np.full(shape, -np.inf, np.float32),
            passages=whole,
            squared_totals=real,
            squared_counts=whole,
            products=real,
        )

    def plus(self, other: Moments) -> Moments:
        """Those of both."""
        combine = {"smallest": np.minimum, "largest": np.maximum}
        both = zip(self._fields, self, other, strict=True)
        return Moments(*(combine.get(name, np.add)(mine, yours) for name, mine, yours in both))

    @staticmethod
    def stacked(layers: list[Moments]) -> Moments:
        """Those of the heads of all layers."""
        return Moments(*map(np.concatenate, zip(*layers, strict=True))) if layers else Moments.zeros(0)

    @property
    def means(self) -> NDArray[np.float64]:
        """Over all queries that count; NaN without any."""
        return self.totals / _or_nan(self.counts, 1)

    @property
    def deviations(self) -> NDArray[np.float64]:
        """Standard deviations of single queries."""
        variance = self.squares / _or_nan(self.counts, 1) - self.means**2
        return np.sqrt(np.maximum(variance, 0.0))  # rounding may leave less than nothing of equal numbers

    @property
    def standard_errors(self) -> NDArray[np.float64]:
        """Of the means, as if other passages had been drawn: queries of one passage are no independent witnesses.

        A mean is the ratio of totals to counts of passages. Linearised, its error is that of the sum of
        total - mean * count over passages. NaN below two passages.
        """
        means = self.means
        residuals = self.squared_totals - 2 * means * self.products + means**2 * self.squared_counts
        passages = _or_nan(self.passages, 2)
        return np.sqrt(np.maximum(residuals, 0.0) * passages / (passages - 1)) / self.counts.clip(1)


def _or_nan(numbers: NDArray[np.int64], least: int) -> NDArray[np.float64]:
    return np.where(numbers >= least, numbers, np.nan)
