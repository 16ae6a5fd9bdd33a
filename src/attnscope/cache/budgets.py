"""How much of the context later queries attend to, and how many pairs each head needs to keep of it.

In: a trace of the queries after a context. Out: the exact weight on evicted pairs, and budgets per key-value head.
Does not know: models. Memory: one number for each pair.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attnscope.cache.kept_pairs import PAIRS, KeptPairs, PairScores, self_attention
from attnscope.errors import SettingError
from attnscope.heads import HeadTable
from attnscope.recording import Trace

LaterWeights = Mapping[str, Tensor]
"""By layer name, the mean weight of later queries on each key of the context, (batch, heads, context)."""


def later_weights(later: Trace, context: int) -> LaterWeights:
    """The mean weight of the queries after a context on each of its keys: exact column sums.

    The trace may also have the queries of the context, which are left out.
    """
    found = {}
    for name, layer in self_attention(later).items():
        queries, keys = layer.shape[2:]
        first = max(0, context - layer.rows.start)
        received = layer.matrix().bins([first, queries], [0, keys]).received
        found[name] = received[..., :context] / (queries - first)
    return found


def lost_weight(kept: KeptPairs, later: LaterWeights) -> HeadTable:
    """The mean weight that later queries had on evicted pairs, for each query head, as the column "lost"."""
    layers, heads, parts = [], [], []
    for name, keep in kept.keep.items():
        group = later[name].shape[1] // keep.shape[1]
        lost = (later[name].double() * ~keep.repeat_interleave(group, dim=1)).sum(-1).mean(0)
        layers += [name] * len(lost)
        heads += range(len(lost))
        parts.append(lost.cpu())
    return HeadTable(tuple(layers), tuple(heads), {"lost": torch.cat(parts)})


def recommend_budgets(scores: PairScores, later: Trace | LaterWeights, *, weight: float = 0.95) -> HeadTable:
    """Return the smallest number of pairs per key-value head that keeps a share of the attention of later queries.

    Args:
        scores: The policy, which decides in which order pairs are evicted.
        later: A trace of the queries after the context, recorded with a KV cache.
        weight: The share of the weight on the context that is kept, as a mean over queries and over the query heads
            that share the key-value head.

    Returns:
        A table of key-value heads: `pairs`, `fraction` of the context, and `lost`, the mean weight of later queries on
        the evicted pairs. `PairScores.keep` accepts it as a budget.

    Raises:
        SettingError: `weight` is not between 0 and 1.
    """
    if not 0 < weight <= 1:
        raise SettingError(f"recommend_budgets: expected a weight above 0 and at most 1, got {weight}")
    context = next(iter(scores.scores.values())).shape[2]
    known = later_weights(later, context) if isinstance(later, Trace) else later
    layers, heads, pairs, lost = [], [], [], []
    for name, some in scores.scores.items():
        received = known[name].double().unflatten(1, (some.shape[1], -1)).mean((0, 2))
        order = some.mean(0).argsort(dim=-1, descending=True, stable=True)
        remaining = received.gather(-1, order).flip(-1).cumsum(-1).flip(-1)  # lost if this pair and the next ones are
        remaining = torch.nn.functional.pad(remaining, (0, 1))
        limit = (1 - weight) * remaining[:, :1]
        count = (remaining > limit).sum(-1)
        layers += [name] * len(count)
        heads += range(len(count))
        pairs.append(count.cpu())
        lost.append(remaining.gather(-1, count[:, None])[:, 0].cpu())
    counts = torch.cat(pairs)
    columns = {PAIRS: counts.double(), "fraction": counts.double() / context, "lost": torch.cat(lost)}
    return HeadTable(tuple(layers), tuple(heads), columns)
