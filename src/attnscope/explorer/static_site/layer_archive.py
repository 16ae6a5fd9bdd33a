"""The archive of one layer: keys, thumbnails, scores of its heads, and the strongest links of each token in all heads.

In: an open trace, a layer, and the links of its heads. Out: a file and its index. Links are stored by token, so that a
browser reads those of one token in all heads at once. Does not know: heads' archives. Memory: the keys of one head, and
the links of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from attnscope.explorer.analysis.layer_scores import MAX_QUERIES, layer_scores
from attnscope.explorer.library.library import Entry
from attnscope.explorer.library.trace_scores import MAX_WHOLE_CELLS
from attnscope.explorer.service.guard import App
from attnscope.explorer.service.http import to_json
from attnscope.explorer.static_export.exporter import request_body
from attnscope.explorer.static_site.archive import DTYPES, ArchiveWriter, StoredFile
from attnscope.explorer.static_site.head_archive import TokenLinks
from attnscope.recording.layers.recorded import Layer


async def write_layer(
    app: App, entry: Entry, folder: Path, name: str, layer: int, links: Sequence[TokenLinks]
) -> tuple[StoredFile, dict[str, Any]]:
    """Write the archive of a layer with the links of its published heads; return the scores of all its heads, too."""
    scores = score_layer(entry, layer)
    with ArchiveWriter(folder, name) as archive:
        archive.add_response("heads", to_json({**scores, "pending": False}))
        for channel in ("mean", "max"):
            body = await request_body(app, f"{entry.trace_id}/{layer}/thumbs?ch={channel}", required=True)
            archive.add_response(f"thumbs?ch={channel}", body)
        recorded = entry.layer(layer)
        if isinstance(recorded, Layer):
            call = recorded.merge_calls()
            for head in range(call.key.shape[1] if call.key.dtype in DTYPES else 0):
                archive.add_array(f"key {head}", call.key[0, head])
                if call.value is not None:
                    norms = torch.linalg.vector_norm(call.value[0, head].double(), dim=-1)
                    archive.add_array(f"value norm {head}", norms.float())
        archive.add_array("query links", _interleave([(one.top_weight, one.top_key) for one in links]))
        archive.add_array("key links", _interleave([(one.received, one.top_query) for one in links]))
        return archive.finish(), scores


def score_layer(entry: Entry, layer: int) -> dict[str, Any]:
    """The labels and scores of all heads, of the whole text where the explorer scores it; none if it cannot."""
    _, heads, queries, keys = entry.layer(layer).shape
    causal = entry.is_causal(layer)
    whole = heads * queries * keys <= MAX_WHOLE_CELLS
    if not whole and not causal and queries > MAX_QUERIES:
        return empty_scores(entry, layer)
    return layer_scores(entry.trace, layer, causal=causal, max_queries=None if whole else MAX_QUERIES)


def empty_scores(entry: Entry, layer: int) -> dict[str, Any]:
    """The scores of a layer that is not scored."""
    _, heads, queries, _ = entry.layer(layer).shape
    nothing = [{"labels": [], "scores": {}} for _ in range(heads)]
    return {
        "scored_queries": 0,
        "num_queries": queries,
        "complete": False,
        "heads": nothing,
        "meanings": {},
        "measures": {},
    }


def _interleave(parts: Sequence[tuple[NDArray[numpy.float32], NDArray[numpy.uint32]]]) -> NDArray[numpy.uint32]:
    """A row per token: a weight, as the bits of a float, and a position for each head."""
    return numpy.stack([column for weights, places in parts for column in (weights.view("<u4"), places)], axis=1)
