"""Dense attention: score every pair, take the softmax, weight the values.

This is the definition. Every other backend is tested against it, in values and in gradients. It builds and returns the
(queries x keys) weights, so its memory is O(n^2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.masks import Full
from attnscope.attention.scores import Cells, ScoreMod
from attnscope.attention.spec import AttentionSpec, make_spec, signature_of, to_4d


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = Full(),
    scale: float | None = None,
    score_mod: ScoreMod | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute attention and return its weights, in O(n^2) memory. The arguments are those of `attend`.

    Returns:
        The output (..., heads, queries, value dim) and the attention weights (..., heads, queries, keys).

    >>> tokens = torch.eye(3)
    >>> output, weights = attention(tokens, tokens, tokens, scale=1.0)
    >>> weights[0]
    tensor([0.5761, 0.2119, 0.2119])
    """
    spec = make_spec(signature_of(query, key, value), mask=mask, scale=scale, score_mod=score_mod, dropout=dropout)
    output, _, weights = reference_attention(spec, to_4d(query), to_4d(key), to_4d(value))
    leading = query.shape[:-2]
    return output.reshape(*leading, *output.shape[2:]), weights.reshape(*leading, *weights.shape[2:])


def reference_attention(
    spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, lse and weights of 4-D tensors; differentiable any number of times."""
    query, key, value = (tensor.to(spec.compute_dtype) for tensor in (query, key, value))
    group = spec.sizes.heads // spec.num_kv_heads  # query head h reads key head h // group
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)

    scores = spec.scale * (query @ key.mT)
    for step in spec.steps:
        scores = step.apply(scores, _all_cells(spec))
    allowed = spec.mask.to_dense(spec.sizes, query.device)
    weights, lse = masked_softmax(scores, allowed, None if spec.sinks is None else spec.sinks.logits)
    output = torch.dropout(weights, spec.dropout, train=spec.dropout > 0) @ value

    return output.to(spec.signature.dtype), lse, weights


def masked_softmax(scores: Tensor, allowed: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return weights and lse of each row; without a key that is allowed and above -inf, weights are 0 and lse -inf."""
    scores = scores.masked_fill(~allowed, -math.inf)
    empty = (scores == -math.inf).all(dim=-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)  # any finite number: its weights are overwritten, and gradients stay finite
    if sinks is not None:
        sink = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(dim=-1)[..., : allowed.shape[-1]].masked_fill(empty, 0.0)
    lse = scores.logsumexp(dim=-1).masked_fill(empty.squeeze(-1), -math.inf)
    return weights, lse


def _all_cells(spec: AttentionSpec) -> Cells:
    rows = torch.arange(spec.sizes.queries, device=spec.signature.device)
    columns = torch.arange(spec.sizes.keys, device=spec.signature.device)
    return Cells(rows[:, None], columns[None, :], spec.sizes)
