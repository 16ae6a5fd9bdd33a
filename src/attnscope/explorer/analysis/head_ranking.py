"""How strongly each head links some tokens to others, for all heads of some layers.

In: the matrices of layers, (heads, queries, keys), and positions of queries, of keys, or of both. Out: a value per head
as JSON, with null for NaN weights and for layers that lack these positions.
Does not know: servers, how weights are computed. Memory: one block of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from attnscope.errors import SettingError
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.heads.links import measure_link
from attnscope.matrix import AttentionMatrix

POSITIONS = {"weight": None, "top_weight": "top_key", "received": "top_query"}
"""The measures of `find_heads`, and the column with the position of each, if there is one."""


def rank_heads(
    matrices: Iterable[AttentionMatrix],
    first_layer: int,
    queries: range | None,
    keys: Sequence[range] | None,
    cancelled: CancelCheck = never_cancelled,
) -> dict[str, Any]:
    """Measure a link in all heads of some layers; raises SettingError if no layer has these positions."""
    found = [measure_link(matrix, queries, keys, cancelled) for matrix in matrices]
    if not any(found):
        some = None if keys is None else range(keys[0].start, keys[-1].stop)
        raise SettingError(f"no layer has queries {_format(queries)} and keys {_format(some)}")
    measure = "received" if queries is None else "top_weight" if keys is None else "weight"
    return {
        "measure": measure,
        "first_layer": first_layer,
        "layers": [None if part is None else _layer_values(part, measure) for part in found],
    }


def _layer_values(columns: dict[str, Tensor], measure: str) -> dict[str, Any]:
    place = POSITIONS[measure]
    return {
        "values": [round_weight(value) for value in columns[measure].tolist()],
        "positions": None if place is None else columns[place].long().tolist(),
    }


def round_weight(value: float) -> float | None:
    """Round to the digits of float32; None for NaN, which JSON lacks.

    >>> round_weight(0.1234567891234), round_weight(float("nan"))
    (0.123456789, None)
    """
    return None if math.isnan(value) else float(f"{value:.9g}")


def _format(positions: range | None) -> str:
    return "of any position" if positions is None else f"{positions.start:,} to {positions.stop - 1:,}"
