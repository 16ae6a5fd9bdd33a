"""Which scores of a head a survey keeps, and the bins that each is counted in.

Bins are the buckets of DDSketch, fixed in advance, so that counts of any two shards are added as whole numbers and
quantiles are known to 2 %. In: scores. Out: bins, and quantiles read off them by the ddsketch library.
Does not know: heads, shards. Memory: a few thousand edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnscope.extras import import_extra

ACCURACY = 0.02
"""How far a quantile may be from the true one, as a share of it."""

HALF = 16
"""Bits of half a float."""

LONGEST = 2**20
"""Keys of a row, up to which statistics are told apart."""

_KEYS_AN_OCTAVE = math.log(2) / math.log1p(2 * ACCURACY / (1 - ACCURACY))


@dataclass(frozen=True)
class Bins:
    """Buckets of DDSketch from the one that holds `floor` to the one that holds `ceiling`.

    Bin 0 is for what is below, which is taken for zero; what is above is counted in the last.
    """

    floor: float
    ceiling: float

    def __len__(self) -> int:
        return len(self.edges)

    @cached_property
    def edges(self) -> NDArray[np.float64]:
        """The upper end of each bin, which belongs to it; the lower end is that of the bin before."""
        return np.array([2.0 ** (key / _KEYS_AN_OCTAVE) for key in (self._first - 1, *self._keys)])

    @cached_property
    def limits(self) -> NDArray[np.float32]:
        """The upper ends for numbers of 32 bits: rounded down, they divide those as the edges do; the last has none."""
        rounded = self.edges.astype(np.float32)
        rounded = np.where(rounded > self.edges, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        return np.append(rounded[:-1], np.float32(np.inf))

    def find(self, values: NDArray[np.float32]) -> NDArray[np.int16]:
        """The bin of each value, by looking it up: six times as fast as searching among the limits.

        The upper half of the bits of a float, sign and exponent and 7 bits of mantissa, is that of numbers that are
        less than 1 % apart. Bins are 4 % wide, so one limit at most lies between those, and one comparison is left.
        """
        found = self._lowest.take(values.view(np.uint32) >> HALF)
        found += values > self.limits.take(found)
        return found

    @cached_property
    def _lowest(self) -> NDArray[np.int16]:
        """For each upper half of bits, the bin of the lowest number that begins with it; of negative ones, 0."""
        halves = np.arange(2**HALF, dtype=np.uint32) << HALF
        positive = halves < np.float32(np.inf).view(np.uint32)
        found = np.searchsorted(self.limits, np.where(positive, halves, 0).view(np.float32))
        return found.astype(np.int16)

    @cached_property
    def middles(self) -> NDArray[np.float64]:
        """A number of each bin that is nowhere further than the accuracy from any other in it; 0 for the first."""
        return np.concatenate([[0.0], self.edges[1:] * (1 - ACCURACY)])

    @property
    def _first(self) -> int:
        return math.ceil(math.log2(self.floor) * _KEYS_AN_OCTAVE)

    @property
    def _keys(self) -> range:
        return range(self._first, math.ceil(math.log2(self.ceiling) * _KEYS_AN_OCTAVE) + 1)

    def quantiles(self, counts: NDArray[np.int64], at: Sequence[float]) -> list[float]:
        """The values below which shares `at` of what was counted lie; nothing may be asked of empty bins."""
        sketch = import_extra("ddsketch").DDSketch(ACCURACY)
        filled = np.flatnonzero(counts)
        values, weights = self.middles[filled].tolist(), counts[filled].tolist()
        for value, weight in zip(values[-1:] + values[:-1], weights[-1:] + weights[:-1], strict=True):
            sketch.add(value, weight)  # the largest first: then its store grows once
        return [float(sketch.get_quantile_value(share)) for share in at]


_SHARE = Bins(1e-4, 1.0)

STATISTICS = {
    "previous": _SHARE,
    "next": _SHARE,
    "self": _SHARE,
    "local": _SHARE,
    "sink": _SHARE,
    "entropy": Bins(1e-3, math.log(LONGEST)),
    "reach": Bins(1e-2, LONGEST),
    "induction": _SHARE,
    "duplicate": _SHARE,
    "effective_keys": Bins(1.0, LONGEST),
    "evenness": _SHARE,
}
"""Scores that have a number for each query, with their bins; what they are is told in `attnscope.heads.SCORES`."""

STARTS = dict(zip(STATISTICS, np.cumsum([0, *map(len, STATISTICS.values())]).tolist(), strict=False))
"""Where the bins of a statistic begin among those of all, which lie side by side."""

NUM_BINS = sum(map(len, STATISTICS.values()))


def bins_of(histograms: NDArray[np.int64], statistic: str) -> NDArray[np.int64]:
    """(..., bins): the part of histograms (..., NUM_BINS) that belongs to a statistic."""
    return histograms[..., STARTS[statistic] : STARTS[statistic] + len(STATISTICS[statistic])]
