"""The statistics of a step as numbers, from what was merged over calls and ranks.

In: the measurements of all layers. Out: one value of each statistic for each head, as numpy arrays.
Does not know: devices, ranks. Memory: O(heads).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.telemetry.measurement import ENTROPY_BIN, Measurement

Array = NDArray[np.float64]

LOW_ENTROPY = 0.1
"""Nats below which nearly all weight of a row is on one key."""
LOW_QUANTILE = 0.05


class HeadStatistics(NamedTuple):
    """Statistics of the heads of a layer in one step, (heads,)."""

    max_logit: Array  #: the largest logit; NaN if a query or key is not finite
    max_rank: Array  #: where it is: the rank of the process
    max_sequence: Array  #: row of its batch
    max_query: Array  #: position of its query
    max_key: Array  #: position of its key
    max_query_norm: Array  #: the largest norm of a query
    max_key_norm: Array  #: the largest norm of a key
    entropy: Array  #: mean entropy of the rows in nats
    entropy_low: Array  #: entropy below which LOW_QUANTILE of the rows are, from bins of ENTROPY_BIN nats
    collapsed: Array  #: share of the rows with an entropy below LOW_ENTROPY
    effective_keys: Array  #: mean of 1 / sum of weights^2
    sink_weight: Array  #: mean weight on the first key


def entropy_quantile(counts: Array, quantile: float) -> Array:
    """The entropy below which a share of the rows is, interpolated within a bin, from counts (heads, bins).

    >>> entropy_quantile(np.array([[0.0, 10.0, 10.0]]), 0.5)
    array([0.2])
    """
    cumulative = counts.cumsum(1)
    wanted = quantile * cumulative[:, -1:]
    at = np.minimum((cumulative < wanted).sum(1), counts.shape[1] - 1)
    row = np.arange(len(counts))
    before, inside = cumulative[row, at] - counts[row, at], counts[row, at]
    share = np.divide(wanted[:, 0] - before, inside, out=np.zeros_like(before), where=inside > 0)
    return (at + share) * ENTROPY_BIN


def to_statistics(measurement: Measurement) -> HeadStatistics:
    """The statistics of the heads of one layer; waits for its device."""
    maxima, place, sums = ([part.double().cpu().numpy() for part in group] for group in measurement)
    rows, entropy, effective_keys, first_weight, _, counts = sums
    rows = np.where(rows == 0, np.nan, rows)
    return HeadStatistics(
        *maxima[:1],
        *place,
        *maxima[1:],
        entropy=entropy / rows,
        entropy_low=np.where(np.isnan(rows), np.nan, entropy_quantile(counts, LOW_QUANTILE)),
        collapsed=counts[:, 0] / rows,
        effective_keys=effective_keys / rows,
        sink_weight=first_weight / rows,
    )


def concatenate(layers: Sequence[HeadStatistics]) -> HeadStatistics:
    """The heads of all layers side by side."""
    return HeadStatistics(*(np.concatenate(parts) for parts in zip(*layers, strict=True)))
