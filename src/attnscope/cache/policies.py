"""Eviction policies: a score for each key-value pair of a layer, the highest of which are kept.

In: the attention call of a layer over the whole context. Out: scores (batch, key-value heads, keys). Query heads that
share a key-value head are averaged. Does not know: budgets, models. Memory: O(n); no n x n matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.errors import SettingError
from attnscope.matrix import AttentionMatrix
from attnscope.recording.call import Call

WINDOW, POOLED = 64, 5  # queries that SnapKV reads, and neighbouring keys that it averages
SINK_TOKENS = 4  # that StreamingLLM keeps


class Policy(NamedTuple):
    """A function of a call, its matrix and a seed that returns scores, and a description."""

    score: Callable[[Call, AttentionMatrix, int], Tensor]
    meaning: str


def received(call: Call, matrix: AttentionMatrix, _seed: int) -> Tensor:
    """The mean weight that each key receives from the queries that may attend to it (H2O, arXiv 2306.14048)."""
    sums = matrix.received()
    visible = matrix.visible_cells(1, matrix.shape[-1])[..., 0, :]
    return _mean_of_group(sums / visible.clamp(min=1), call)


def window(call: Call, matrix: AttentionMatrix, _seed: int) -> Tensor:
    """The mean weight from the last 64 queries, averaged over 5 keys (SnapKV, arXiv 2404.14469); these are kept."""
    keys = call.key.shape[2]
    if keys <= WINDOW:
        raise SettingError(f"cache: the policy 'window' needs a context of more than {WINDOW} tokens, got {keys}")
    rows = slice(matrix.shape[-2] - WINDOW, matrix.shape[-2])
    weights = matrix[:, :, rows, : keys - WINDOW].mean(-2)
    pooled = _mean_of_group(F.avg_pool1d(weights, POOLED, stride=1, padding=POOLED // 2), call)
    return F.pad(pooled, (0, WINDOW), value=torch.inf)


def recent(call: Call, _matrix: AttentionMatrix, _seed: int) -> Tensor:
    """The position, with the first 4 tokens before all others (StreamingLLM, arXiv 2309.17453)."""
    batch, heads, keys, _ = call.key.shape
    position = torch.arange(keys, dtype=torch.float32, device=call.key.device)
    return position.masked_fill(position < SINK_TOKENS, torch.inf).expand(batch, heads, -1)


def expected(call: Call, _matrix: AttentionMatrix, _seed: int) -> Tensor:
    """The weight expected for a Gaussian fit of the queries of the context (after arXiv 2510.00636).

    The paper fits queries without rotary positions and adds norms of values; this fits the recorded queries.
    """
    query, key = _at_least_float32(call.query), _at_least_float32(call.key)
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    mean = query.mean(2, keepdim=True)
    centred = query - mean
    covariance = centred.transpose(-1, -2) @ centred / query.shape[2]
    logits = scale * (key * mean).sum(-1) + scale**2 / 2 * ((key @ covariance) * key).sum(-1)
    return _mean_of_group(logits.softmax(-1), call)


def norm(call: Call, _matrix: AttentionMatrix, _seed: int) -> Tensor:
    """The negative norm of the key (arXiv 2406.11430)."""
    return -_at_least_float32(call.key).norm(dim=-1)


def random(call: Call, _matrix: AttentionMatrix, seed: int) -> Tensor:
    """A random number: the baseline."""
    return torch.rand(call.key.shape[:3], generator=torch.Generator().manual_seed(seed)).to(call.key.device)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _mean_of_group(scores: Tensor, call: Call) -> Tensor:
    """The mean over the query heads of each key-value head."""
    return scores.unflatten(1, (call.key.shape[1], -1)).mean(2)


POLICIES = {
    "received": Policy(received, "mean weight received from all queries of the context (H2O)"),
    "window": Policy(window, f"mean weight from the last {WINDOW} queries, smoothed over {POOLED} keys (SnapKV)"),
    "recent": Policy(recent, f"the first {SINK_TOKENS} and the last tokens (StreamingLLM)"),
    "expected": Policy(expected, "weight expected for a Gaussian fit of the queries (Expected Attention)"),
    "norm": Policy(norm, "keys with the smallest norm"),
    "random": Policy(random, "random pairs"),
}
"""Every policy by name."""
