"""All heads of a layer in words and numbers.

In: a trace. Out: labels and scores of each head, from the first 2,048 queries of a long text, where those have the
very weights that they would have without the rest. Does not know: servers. Memory: the statistics of those queries.
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


def layer_scores(trace: Trace, place: int, *, causal: bool, cancelled: CancelCheck = never_cancelled) -> dict[str, Any]:
    """Labels and scores of each head, and what those mean; a head whose weights are no numbers has none."""
    layer = trace.layer(place)
    _, heads, queries, _ = layer.shape
    some = min(queries, MAX_QUERIES)
    if queries > some and not causal:
        raise UnsupportedError(
            f"{layer.name} looks both ways over {queries:,} tokens, and only texts of up to {MAX_QUERIES:,} are "
            "scored here then; for longer ones use attnscope.score_heads(trace)"
        )
    sound = _sound(trace, place, some, cancelled)
    found: list[dict[str, Any]] = [{"labels": [], "scores": {}} for _ in range(heads)]
    if sound:
        part = slice_layer(
            trace, place, queries=some, heads=None if len(sound) == heads else sound, cancelled=cancelled
        )
        table = score_heads(part, progress=False)
        names = table.labels or [()] * len(sound)
        for row, head in enumerate(sound):
            scores = {name: float(column[row]) for name, column in table.columns.items() if not column[row].isnan()}
            found[head] = {"labels": list(names[row]), "scores": scores}
    return {
        "queries": some,
        "of": queries,
        "heads": found,
        "meanings": {label: get_meaning(label) for head in found for label in head["labels"]},
        "measures": {score: SCORES[score] for score in SCORES if any(score in head["scores"] for head in found)},
    }


def _sound(trace: Trace, place: int, queries: int, cancelled: CancelCheck) -> list[int]:
    """The heads whose weights are numbers; what is broken may be hidden, as padding is."""
    part = slice_layer(trace, place, queries=queries, cancelled=cancelled).layer(0)
    heads = list(range(part.shape[1]))
    if isinstance(part, Layer):
        call = part.joined()
        if call.query.isfinite().all() and call.key.isfinite().all():
            return heads
    total = part.matrix().batch(0).bins([0, part.shape[2]], [0, part.shape[3]]).sums
    return [head for head in heads if total[head].isfinite().all()]
