"""Labels and scores of all heads of a layer.

In: a trace. Out: labels and scores of each head, from the whole text or from its first queries, if it is causal.
Does not know: servers. Memory: the statistics of those queries.
"""

from __future__ import annotations

from typing import Any

from attnscope.errors import UnsupportedError
from attnscope.explorer.analysis.inspection import get_meaning
from attnscope.explorer.analysis.slicing import slice_layer
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.heads import SCORES, score_heads
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer

MAX_QUERIES = 2048


def layer_scores(
    trace: Trace,
    place: int,
    *,
    causal: bool,
    max_queries: int | None = MAX_QUERIES,
    cancelled: CancelCheck = never_cancelled,
) -> dict[str, Any]:
    """Score all heads of a layer, with the meaning of labels and scores; a head with NaN weights has none.

    Args:
        trace: The trace.
        place: The index of the layer.
        causal: Whether the layer is causal, so that its first queries can be scored alone.
        max_queries: The number of first queries to score; None for the whole text.
        cancelled: The cancellation check.

    Raises:
        UnsupportedError: The layer is bidirectional, and has more queries.
        Cancelled: `cancelled` returned True.
    """
    layer = trace.layer(place)
    _, heads, queries, _ = layer.shape
    some = queries if max_queries is None else min(queries, max_queries)
    if queries > some and not causal:
        raise UnsupportedError(
            f"{layer.name} is bidirectional, and {queries:,} tokens are too many to score; use "
            "attnscope.score_heads(trace)"
        )
    finite = _find_finite_heads(trace, place, some, cancelled)
    found: list[dict[str, Any]] = [{"labels": [], "scores": {}} for _ in range(heads)]
    if finite:
        part = slice_layer(
            trace, place, queries=some, heads=None if len(finite) == heads else finite, cancelled=cancelled
        )
        table = score_heads(part, progress=False)
        names = table.labels or [()] * len(finite)
        for row, head in enumerate(finite):
            scores = {name: float(column[row]) for name, column in table.columns.items() if not column[row].isnan()}
            found[head] = {"labels": list(names[row]), "scores": scores}
    return {
        "scored_queries": some,
        "num_queries": queries,
        "complete": some == queries,
        "heads": found,
        "meanings": {label: get_meaning(label) for head in found for label in head["labels"]},
        "measures": {score: SCORES[score] for score in SCORES if any(score in head["scores"] for head in found)},
    }


def _find_finite_heads(trace: Trace, place: int, queries: int, cancelled: CancelCheck) -> list[int]:
    """List the heads without NaN weights; NaN in masked positions, such as padding, is allowed."""
    part = slice_layer(trace, place, queries=queries, cancelled=cancelled).layer(0)
    heads = list(range(part.shape[1]))
    if isinstance(part, Layer):
        call = part.merge_calls()
        if call.query.isfinite().all() and call.key.isfinite().all():
            return heads
    total = part.matrix().batch(0).bins([0, part.shape[2]], [0, part.shape[3]]).sums
    return [head for head in heads if total[head].isfinite().all()]
