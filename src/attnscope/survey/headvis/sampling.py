"""Chooses the sequences that a HeadVis tree shows for each head: some of each interval of its largest weight.

In: the largest weight of every head in every sequence; the sequences are in random order. Out: for each head, the
sequences of each interval. All sequences are known before any is chosen, so that intervals are exact and the first
sequences of an interval are a random sample of it. Does not know: models, files. Memory: that of the input.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_INTERVALS = 5
PER_INTERVAL = 3
"""Sequences of each interval but the highest."""
PER_TOP_INTERVAL = 10


class Chosen(NamedTuple):
    """A sequence of a head."""

    interval: int
    """From 1, the lowest, to `NUM_INTERVALS`."""
    sequence: int


def choose_sequences(largest: NDArray[np.float64]) -> list[Chosen]:
    """Choose the sequences of one head.

    Args:
        largest: The largest weight of the head in each sequence, (sequences,).

    Returns:
        The sequences by interval: the first ones of each, and those with the largest weights of the highest, the
        largest first.

    >>> choose_sequences(np.array([0.9, 0.1, 0.5, 0.3, 0.7]))[-2:]
    [Chosen(interval=4, sequence=4), Chosen(interval=5, sequence=0)]
    """
    ordered = np.sort(largest)
    boundaries = [ordered[number * len(ordered) // NUM_INTERVALS] for number in range(1, NUM_INTERVALS)]
    intervals = np.searchsorted(boundaries, largest, side="right") + 1
    found = list[Chosen]()
    for interval in range(1, NUM_INTERVALS):
        sequences = np.flatnonzero(intervals == interval)[:PER_INTERVAL]
        found += [Chosen(interval, number) for number in sequences.tolist()]
    top = np.flatnonzero(intervals == NUM_INTERVALS)
    best = top[np.argsort(-largest[top], kind="stable")][:PER_TOP_INTERVAL]
    return found + [Chosen(NUM_INTERVALS, number) for number in best.tolist()]
