"""The statistics of a survey and their histogram bins.

Bins are fixed buckets of DDSketch (Masson et al., 2019, https://arxiv.org/abs/1908.10693), so histograms of any two
shards can be added as integers, and quantiles are known to 2 %. In: scores. Out: bins, and quantiles from the ddsketch
library.
Does not know: heads, shards. Memory: a few thousand edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.extras import import_extra

RELATIVE_ACCURACY = 0.02
"""The maximum relative error of a quantile."""

HALF_BITS = 16
"""Half of the bits of a float32."""

MAX_KEYS = 2**20
"""Values of statistics above so many keys are counted in the last bin."""

_BUCKETS_PER_OCTAVE = math.log(2) / math.log1p(2 * RELATIVE_ACCURACY / (1 - RELATIVE_ACCURACY))


@dataclass(frozen=True)
class Bins:
    """The buckets of DDSketch from the one of `floor` to the one of `ceiling`.

    Bin 0 counts smaller values, which are treated as zero; larger values are counted in the last bin.
    """

    floor: float
    ceiling: float

    def __len__(self) -> int:
        return len(self.edges)

    @cached_property
    def edges(self) -> NDArray[np.float64]:
        """The upper end of each bin, inclusive; the lower end is the upper end of the previous bin."""
        return np.array([2.0 ** (key / _BUCKETS_PER_OCTAVE) for key in (self._first - 1, *self._keys)])

    @cached_property
    def limits(self) -> NDArray[np.float32]:
        """The edges rounded down to float32, which divide float32 values in the same way; the last one is infinite."""
        rounded = self.edges.astype(np.float32)
        rounded = np.where(rounded > self.edges, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        return np.append(rounded[:-1], np.float32(np.inf))

    @cached_property
    def lookup_table(self) -> NDArray[np.int64]:
        """For each upper half of the bits, the bin of the smallest float that starts with it; 0 for negative ones."""
        halves = np.arange(2**HALF_BITS, dtype=np.uint32) << HALF_BITS
        positive = halves < np.float32(np.inf).view(np.uint32)
        return np.searchsorted(self.limits, np.where(positive, halves, 0).view(np.float32))

    @cached_property
    def centers(self) -> NDArray[np.float64]:
        """A value of each bin within the relative accuracy of all others in it; 0 for the first bin."""
        return np.concatenate([[0.0], self.edges[1:] * (1 - RELATIVE_ACCURACY)])

    @property
    def _first(self) -> int:
        return math.ceil(math.log2(self.floor) * _BUCKETS_PER_OCTAVE)

    @property
    def _keys(self) -> range:
        return range(self._first, math.ceil(math.log2(self.ceiling) * _BUCKETS_PER_OCTAVE) + 1)

    def quantiles(self, counts: NDArray[np.int64], fractions: Sequence[float]) -> list[float]:
        """The quantiles of a histogram (bins,) that is not empty."""
        sketch = import_extra("ddsketch").DDSketch(RELATIVE_ACCURACY)
        filled = np.flatnonzero(counts)
        values, weights = self.centers[filled].tolist(), counts[filled].tolist()
        for value, weight in zip(values[-1:] + values[:-1], weights[-1:] + weights[:-1], strict=True):
            sketch.add(value, weight)  # the largest first, so that the store grows only once
        return [float(sketch.get_quantile_value(fraction)) for fraction in fractions]


_FRACTION = Bins(1e-4, 1.0)

STATISTICS = {
    "previous": _FRACTION,
    "next": _FRACTION,
    "self": _FRACTION,
    "local": _FRACTION,
    "sink": _FRACTION,
    "entropy": Bins(1e-3, math.log(MAX_KEYS)),
    "reach": Bins(1e-2, MAX_KEYS),
    "induction": _FRACTION,
    "duplicate": _FRACTION,
    "effective_keys": Bins(1.0, MAX_KEYS),
    "evenness": _FRACTION,
}
"""The head scores that have one value per query, with their bins; `attnscope.heads.SCORES` describes them."""

BIN_OFFSETS = dict(zip(STATISTICS, np.cumsum([0, *map(len, STATISTICS.values())]).tolist(), strict=False))
"""The offset of the bins of each statistic in a histogram row, which concatenates all statistics."""

NUM_BINS = sum(map(len, STATISTICS.values()))


def find_bins(values: Tensor) -> Tensor:
    """The bin of each value in a histogram row, from a lookup table: six times as fast as a binary search.

    Floats with the same upper 16 bits (sign, exponent and 7 bits of mantissa) are less than 1 % apart. Bins are 4 %
    wide, so at most one limit lies between such floats, and one comparison decides.

    Args:
        values: Finite float32 scores (statistics, ...) in the order of `STATISTICS`, on any device.

    Returns:
        Bins of the same shape, on the same device; those of a statistic start at its offset.
    """
    table, limits = _tables(values.device)
    rows = torch.arange(len(STATISTICS), device=values.device).view(-1, *(1,) * (values.ndim - 1))
    halves = (values.view(torch.int32) >> HALF_BITS) & (2**HALF_BITS - 1)
    found = table.take(halves + (rows << HALF_BITS))
    return found + (values > limits.take(found))


@cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """The lookup tables (statistics * 2**16,) and the upper limits (NUM_BINS,) of the bins of a histogram row."""
    tables = np.concatenate([bins.lookup_table + BIN_OFFSETS[name] for name, bins in STATISTICS.items()])
    limits = np.concatenate([bins.limits for bins in STATISTICS.values()])
    return torch.from_numpy(tables).to(device), torch.from_numpy(limits).to(device)


def select_bins(histograms: NDArray[np.int64], statistic: str) -> NDArray[np.int64]:
    """Select the histogram (..., bins) of one statistic from histograms (..., NUM_BINS)."""
    return histograms[..., BIN_OFFSETS[statistic] : BIN_OFFSETS[statistic] + len(STATISTICS[statistic])]
