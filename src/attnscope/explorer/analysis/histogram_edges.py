"""The bins of histograms: few, and the same for all heads.

In: the largest value of any head. Out: edges of bins. Does not know: surveys. Memory: some numbers.
"""

from __future__ import annotations

import math

NUM_BINS = 20
LINEAR_UP_TO = 16.0  # above, bins are logarithmic, for example of distances in tokens


def histogram_edges(largest: float) -> list[float]:
    """Compute the edges: linear if no value is above 16, otherwise growing by the square root of 2.

    >>> histogram_edges(0.4)[:3], histogram_edges(0.4)[-1], histogram_edges(5.2)[-1]
    ([0.0, 0.05, 0.1], 1.0, 6.0)
    >>> [round(edge, 2) for edge in histogram_edges(17.0)]
    [0.0, 1.0, 1.41, 2.0, 2.83, 4.0, 5.66, 8.0, 11.31, 16.0, 22.63]
    """
    if not largest > LINEAR_UP_TO:
        top = float(max(1, math.ceil(largest)))
        return [top * step / NUM_BINS for step in range(NUM_BINS + 1)]
    edges = [0.0, 1.0]
    while edges[-1] < largest:
        edges.append(2.0 ** ((len(edges) - 1) / 2))
    return edges
