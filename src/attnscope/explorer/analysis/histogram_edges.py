"""The scale on which a person sees distributions: a few bars, and the same for all heads.

In: the largest value of any head. Out: edges of bars. Does not know: surveys, what is counted. Memory: some numbers.
"""

from __future__ import annotations

import math

BARS = 20
EVEN_UP_TO = 16.0  # beyond, what matters is how many times as much: as for tokens that a head looks back


def histogram_edges(largest: float) -> list[float]:
    """Where bars begin and end: even steps up to 1 or a few, and half doublings for what goes further.

    >>> histogram_edges(0.4)[:3], histogram_edges(0.4)[-1], histogram_edges(5.2)[-1]
    ([0.0, 0.05, 0.1], 1.0, 6.0)
    >>> [round(edge, 2) for edge in histogram_edges(17.0)]
    [0.0, 1.0, 1.41, 2.0, 2.83, 4.0, 5.66, 8.0, 11.31, 16.0, 22.63]
    """
    if not largest > EVEN_UP_TO:
        top = float(max(1, math.ceil(largest)))
        return [top * step / BARS for step in range(BARS + 1)]
    edges = [0.0, 1.0]
    while edges[-1] < largest:
        edges.append(2.0 ** ((len(edges) - 1) / 2))
    return edges
