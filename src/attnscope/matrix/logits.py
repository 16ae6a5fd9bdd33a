"""The largest logit of each head, and the query and key that have it.

A logit is a score as the softmax takes it: scaled, changed by score modifiers, and allowed by the mask. Attention sinks
are no scores of keys and do not count. Out: (batch, heads). Memory: O(n).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.matrix.blocks import Block, Weights, reduce_blocks
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.schedule import Schedule


class MaxLogit(NamedTuple):
    """The largest logit of each head."""

    logits: Tensor  #: (...), -inf for a head whose mask allows no cell
    queries: Tensor  #: position of the query, (...), -1 for a head whose mask allows no cell
    keys: Tensor  #: position of the key, (...), likewise


class LargestWeights:
    """The logarithm of the largest weight of each row and its key, (batch, heads, queries)."""

    def __init__(self, source: Weights) -> None:
        self.log_weights = torch.full(source.sizes[:3], -math.inf, dtype=source.dtype, device=source.device)
        self.keys = torch.zeros(source.sizes[:3], dtype=torch.long, device=source.device)

    def add(self, block: Block) -> None:
        """Add a block."""
        where = block.batch, block.heads, block.rows
        found, at = block.log_weights.max(-1)
        larger = found > self.log_weights[where]
        self.log_weights[where] = torch.where(larger, found, self.log_weights[where])
        self.keys[where] = torch.where(larger, at + block.columns.start, self.keys[where])


def max_logit(source: Weights, schedule: Schedule) -> MaxLogit:
    """The largest logit of each head and its position, (batch, heads)."""
    if isinstance(source, DenseWeights):
        raise UnsupportedError("max_logit: a matrix made by from_dense has weights but no logits")
    source = source.without_sinks()
    largest = LargestWeights(source)
    first, second = schedule.split(2)
    lse = source.lse(first)
    reduce_blocks(source, [largest], second)
    return max_of_rows(largest.log_weights + lse, largest.keys)


def max_of_rows(logits: Tensor, keys: Tensor) -> MaxLogit:
    """The largest of all rows, from the largest logit of each row and its key, (..., queries)."""
    if not logits.shape[-1]:
        empty = torch.full(logits.shape[:-1], -math.inf, dtype=logits.dtype, device=logits.device)
        nowhere = torch.full(empty.shape, -1, device=logits.device)
        return MaxLogit(empty, nowhere, nowhere.clone())
    largest, query = logits.max(-1)
    key = keys.gather(-1, query[..., None]).squeeze(-1)
    nothing = largest == -math.inf
    return MaxLogit(largest, query.masked_fill(nothing, -1), key.masked_fill(nothing, -1))
