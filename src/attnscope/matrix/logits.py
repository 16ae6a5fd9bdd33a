"""The largest logit of each row and head, and what else tells about the stability of training, in one pass.

A logit is a score as the softmax takes it: scaled, changed by score modifiers, and allowed by the mask. Attention sinks
are no scores of keys: they take weight from the keys, and change no logit. Memory: O(n).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.matrix.blocks import Block, Weights, reduce_blocks
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.reducers import RowSums, block_entropy
from attnscope.matrix.schedule import Schedule


class MaxLogit(NamedTuple):
    """The largest logit of each head."""

    logits: Tensor  #: (...), -inf for a head whose mask allows no cell
    queries: Tensor  #: position of the query, (...), -1 for a head whose mask allows no cell
    keys: Tensor  #: position of the key, (...), likewise


class RowLogits(NamedTuple):
    """Statistics of each row, (..., queries)."""

    max_logit: Tensor  #: the largest logit, -inf for rows without keys
    max_key: Tensor  #: the key that has it
    entropy: Tensor  #: in nats, 0 for rows without keys
    effective_keys: Tensor  #: 1 / sum of weights^2, 0 for rows without keys
    first_weight: Tensor  #: the weight on the first key


def max_logit(source: Weights, schedule: Schedule) -> MaxLogit:
    """The largest logit of each head and its position, (batch, heads)."""
    # Over the keys alone, the largest weight of a row is at least 1 / keys. Beside a large sink, it may underflow.
    keys_alone = with_logits(source, "max_logit").without_sinks()
    first, second = schedule.split(2)
    lse = keys_alone.lse(first)
    largest = _LargestWeights(keys_alone)
    reduce_blocks(keys_alone, [largest], second)
    return max_of_rows(largest.log_weights + lse, largest.keys)


def row_logits(source: LazyWeights, schedule: Schedule) -> RowLogits:
    """Logits, entropy and the weight on the first key of all rows, (batch, heads, queries)."""
    keys_alone = source.without_sinks()
    first, second = schedule.split(2)
    lse = keys_alone.lse(first)
    queries = source.sizes.queries
    largest = _LargestWeights(keys_alone)
    squares = RowSums(keys_alone, queries, lambda block: block.weights.square().sum(-1))
    first_key = RowSums(keys_alone, queries, _first_weight)
    entropy = RowSums(keys_alone, queries, block_entropy)
    reduce_blocks(keys_alone, [largest, squares, first_key, entropy], second)
    log_share = (lse - source.with_sinks(lse)).masked_fill(lse == -math.inf, 0.0)
    share = log_share.exp()
    return RowLogits(
        max_logit=largest.log_weights + lse,
        max_key=largest.keys,
        entropy=(share * (entropy.result - log_share)).clamp_(min=0.0),
        effective_keys=(squares.result * share.square()).reciprocal().masked_fill_(squares.result == 0, 0.0),
        first_weight=first_key.result * share,
    )


def max_of_rows(logits: Tensor, keys: Tensor) -> MaxLogit:
    """The largest of all rows, from the largest logit of each row and its key, (..., queries)."""
    if not logits.shape[-1]:
        lowest = torch.full(logits.shape[:-1], -math.inf, dtype=logits.dtype, device=logits.device)
        nowhere = torch.full(lowest.shape, -1, device=logits.device)
        return MaxLogit(lowest, nowhere, nowhere.clone())
    largest, query = logits.max(-1)
    key = keys.gather(-1, query[..., None]).squeeze(-1)
    nothing = largest == -math.inf
    return MaxLogit(largest, query.masked_fill(nothing, -1), key.masked_fill(nothing, -1))


class _LargestWeights:
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


def _first_weight(block: Block) -> Tensor:
    """The weights on key 0, 0 in blocks without it."""
    return block.weights[..., 0] if block.columns.start == 0 else torch.zeros_like(block.weights[..., 0])


def with_logits(source: Weights, name: str) -> LazyWeights:
    """The weights themselves; raises UnsupportedError if they have no logits."""
    if isinstance(source, DenseWeights):
        raise UnsupportedError(f"{name}: a matrix made by from_dense has weights but no logits")
    return source
