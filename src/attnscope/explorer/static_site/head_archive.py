"""The archive of one head: tiles of coarse levels, statistics, queries and log-sum-exp.

In: an open trace and a head. Out: a file and its index, and the strongest links of its tokens for the archive of the
layer. Does not know: other heads, sites. Memory: the coarse levels of the head and a block of rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.atlas import ByteCache, HeadAtlas, ZoomPlan, codec
from attnscope.errors import AttnScopeError, Cancelled
from attnscope.explorer.analysis import inspection
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.library.library import Entry
from attnscope.explorer.service.guard import App
from attnscope.explorer.static_export.exporter import request_body
from attnscope.explorer.static_site.archive import ArchiveWriter, StoredFile
from attnscope.explorer.static_site.plan import stored_levels
from attnscope.explorer.static_site.score_rules import score_rule
from attnscope.matrix import AttentionMatrix
from attnscope.recording.layers.recorded import Layer

BLOCK_CELLS = 2**22
LINK_BLOCK = 512, 2048  # rows and columns


class TokenLinks(NamedTuple):
    """The strongest link of each token of a head."""

    top_weight: NDArray[numpy.float32]
    """The largest weight of each query."""
    top_key: NDArray[numpy.uint32]
    received: NDArray[numpy.float32]
    """The attention that each key receives."""
    top_query: NDArray[numpy.uint32]
    """The query that gives most of it."""


async def write_head(
    app: App, entry: Entry, folder: Path, name: str, layer: int, head: int, *, should_stop: CancelCheck
) -> tuple[StoredFile, TokenLinks]:
    """Write the archive of a head, as responses of the server and arrays; raises Cancelled if it should stop."""
    matrix = entry.matrix(layer).head(head).with_options(should_stop=should_stop)
    plan = ZoomPlan(*matrix.shape)
    stride = plan.stride(max(stored_levels(plan)))  # one pass over the matrix for all levels that are stored
    atlas = HeadAtlas(matrix, ByteCache(1), f"L{layer}H{head}", coarse_stride=stride)
    path = f"{entry.trace_id}/{layer}/{head}"
    try:
        with ArchiveWriter(folder, name) as archive:
            atlas.build()
            _add_tiles(archive, atlas)
            for part in ("profile", "col/0"):
                body = await request_body(app, f"{path}/{part}")
                if body != b"":  # cross-attention has no profile
                    archive.add_response(part, body)
            entropy, received = (_marginal(atlas, kind) for kind in ("entropy", "received"))
            archive.add_array("entropy", entropy)
            archive.add_array("received", received)
            rule = _add_weights(archive, entry, matrix, layer, head)
            stored = archive.finish()
            links = find_token_links(matrix, received, is_causal=entry.is_causal(layer))
    except Cancelled:
        raise
    except AttnScopeError as error:
        raise type(error)(f"L{layer}H{entry.layer(layer).heads[head]} cannot be published: {error}") from error
    finally:
        atlas.close()
    return stored._replace(contents={**stored.contents, **rule}), links


def _add_tiles(archive: ArchiveWriter, atlas: HeadAtlas) -> None:
    """Add the tiles of each level, one channel after the other, so that those of one view are next to each other."""
    for z in stored_levels(atlas.plan):
        down, across = atlas.plan.count_tiles(z)
        for channel in ("mean", "max"):
            for y in range(down):
                for x in range(across):
                    tile = atlas.tile(z, y, x, channel)
                    archive.add_response(f"{z}/{y}/{x}?ch={channel}", None if tile.state == "empty" else tile.body)


def _marginal(atlas: HeadAtlas, kind: str) -> NDArray[numpy.float32]:
    """A sum per query or key, at every position."""
    z = atlas.plan.deepest
    blocks = atlas.plan.count_tiles(z)[0 if kind == "entropy" else 1]
    parts = (codec.unpack(atlas.marginal(kind, z, block))[1][0] for block in range(blocks))
    return numpy.concatenate(list(parts)).astype("<f4")


def _add_weights(
    archive: ArchiveWriter, entry: Entry, matrix: AttentionMatrix, layer: int, head: int
) -> dict[str, Any]:
    """Add what exact weights are computed from, or all weights where a browser cannot compute them."""
    recorded = entry.layer(layer)
    rule = score_rule(recorded, head)
    queries, keys = matrix.shape
    if rule is None:
        step = max(1, BLOCK_CELLS // keys)
        rows = (range(start, min(start + step, queries)) for start in range(0, queries, step))
        weights = numpy.concatenate([inspection.cells(matrix, some, range(keys)) for some in rows])
        archive.add_array("weights", weights.astype("<f4"))
        return {"rule": None}
    assert isinstance(recorded, Layer)
    call = recorded.merge_calls()
    archive.add_array("query", call.query[0, head])
    archive.add_array("lse", matrix.lse.float())
    return {"rule": rule, "key_head": head * call.key.shape[1] // call.query.shape[1]}


def find_token_links(matrix: AttentionMatrix, received: NDArray[numpy.float32], *, is_causal: bool) -> TokenLinks:
    """The strongest key of each query, and the strongest query of each key, in one pass over the matrix."""
    queries, keys = matrix.shape
    high, wide = LINK_BLOCK
    top_weight, top_key = torch.zeros(queries), torch.zeros(queries, dtype=torch.long)
    most, top_query = torch.zeros(keys), torch.zeros(keys, dtype=torch.long)
    for start in range(0, queries, high):
        rows = slice(start, min(start + high, queries))
        last = max(1, min(keys, rows.stop + keys - queries)) if is_causal else keys
        for left in range(0, last, wide):
            columns = slice(left, min(left + wide, last))
            weights = matrix[rows, columns].float().cpu()
            _keep_largest(weights, left, top_weight[rows], top_key[rows])
            _keep_largest(weights.mT, start, most[columns], top_query[columns])
    return TokenLinks(
        top_weight.numpy().astype("<f4"),
        top_key.numpy().astype("<u4"),
        received,
        top_query.numpy().astype("<u4"),
    )


def _keep_largest(weights: Tensor, first: int, largest: Tensor, places: Tensor) -> None:
    """Update the largest weight of each line, and its place, by a block whose lines start at place `first`.

    Places are looked for by numpy, in lines that change: torch's argmax takes many times as long as its maximum.
    """
    found = weights.amax(-1)
    better = (found > largest).nonzero().flatten()
    largest[better] = found[better]
    places[better] = torch.from_numpy(weights[better].numpy().argmax(-1)) + first
