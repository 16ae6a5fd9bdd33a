"""The weight of each row on keys that have the id of its query.

Ids may be those of tokens (where was this token before?), of the tokens before (what came after it?) or of documents.
In: ids of queries and keys, and blocks of weights. Out: (batch, heads, pairings, queries).
Memory: the results, and a block of booleans.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.attention.block_sizes import block_sizes
from attnscope.errors import ShapeError
from attnscope.matrix.blocks import Block, Weights
from attnscope.matrix.lazy_weights import LazyWeights

Pairing = tuple[Tensor, Tensor]
"""Ids of queries and of keys, (queries,) and (keys,) or (batch, queries) and (batch, keys)."""

SPARSE = 16  # with fewer than one match in so many cells, matches are selected one by one


class MatchedWeights:
    """Reducer: the weight of each row on keys with the id of its query, and the number of these keys."""

    def __init__(self, source: Weights, pairings: Sequence[Pairing]) -> None:
        batch, heads, queries, keys = source.sizes
        self.ids = [
            (_check_ids(query_ids, batch, queries, source.device), _check_ids(key_ids, batch, keys, source.device))
            for query_ids, key_ids in pairings
        ]
        self.can_read = block_sizes(source.device).can_read
        self.weights = torch.zeros(batch, heads, len(pairings), queries, dtype=source.dtype, device=source.device)
        self.same_mask = isinstance(source, LazyWeights) and source.region_mask is not None  # for all heads
        counts = torch.zeros_like(self.weights[:, :1] if self.same_mask else self.weights, dtype=torch.long)
        self.counts = counts.expand(-1, heads, -1, -1)

    def add(self, block: Block) -> None:
        """Add a block; with one mask for all heads, matches are counted with the first head."""
        heads = block.heads
        counted = slice(0, 1 if heads.start == 0 else 0) if self.same_mask else heads
        for row in range(block.batch.start, block.batch.stop):
            weights = block.weights[row - block.batch.start]
            visible = None if block.visible is None else _of_batch_row(block.visible, row - block.batch.start)
            for at, (query_ids, key_ids) in enumerate(self.ids):
                same = query_ids[row, block.rows, None] == key_ids[row, None, block.columns]
                total, counts = self.weights[row, heads, at, block.rows], self.counts[row, counted, at, block.rows]
                rows, columns = same.nonzero(as_tuple=True) if self.can_read else (None, None)
                if rows is not None and not len(rows):
                    continue
                if rows is not None and SPARSE * len(rows) < same.numel():
                    total.index_add_(1, rows, weights[:, rows, columns])
                    found = rows.new_ones(1) if visible is None else visible[..., rows, columns].long()
                    counts.index_add_(1, rows, found.expand(len(counts), len(rows)))
                else:
                    total += (weights * same).sum(-1)
                    counts += (same if visible is None else same & visible).sum(-1)


def _of_batch_row(visible: Tensor, row: int) -> Tensor:
    """The part of one batch row of (rows, columns) or (batch or 1, heads or 1, rows, columns)."""
    return visible if visible.dim() == 2 else visible[row if visible.shape[0] > 1 else 0]


def _check_ids(ids: Tensor, batch: int, count: int, device: torch.device) -> Tensor:
    """Ids as (batch, count)."""
    if ids.is_floating_point() or ids.shape not in ((count,), (batch, count)):
        raise ShapeError(
            f"pairings: expected integer ids ({count},) or ({batch}, {count}), got {tuple(ids.shape)} {ids.dtype}"
        )
    return ids.to(device=device, dtype=torch.long).expand(batch, count)
