"""Attention as the textbooks write it: score every pair, take the softmax, weigh the values.

This is the definition. Every other engine is tested against it, in values and in gradients. It builds the whole
(queries x keys) matrix and hands it back, so its memory is O(n^2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.masks import Full
from attnscope.attention.rule import Rule, in_four, make_rule, sign
from attnscope.attention.scores import Cells, Score


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = Full(),
    scale: float | None = None,
    score_mod: Score | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Output (..., heads, queries, value dim) and weights (..., heads, queries, keys).

    >>> tokens = torch.eye(3)
    >>> output, weights = attention(tokens, tokens, tokens, scale=1.0)
    >>> weights[0]
    tensor([0.5761, 0.2119, 0.2119])
    """
    rule = make_rule(sign(query, key, value), mask=mask, scale=scale, score_mod=score_mod, dropout=dropout)
    output, _, weights = solve(rule, in_four(query), in_four(key), in_four(value))
    leading = query.shape[:-2]
    return output.reshape(*leading, *output.shape[2:]), weights.reshape(*leading, *weights.shape[2:])


def solve(rule: Rule, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output, lse and weights; differentiable as often as wanted."""
    query, key, value = (tensor.to(rule.precise) for tensor in (query, key, value))
    group = rule.sizes.heads // rule.key_heads  # query head h reads key head h // group
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)

    scores = rule.scale * (query @ key.mT)
    for step in rule.steps:
        scores = step.apply(scores, _every_cell(rule))
    allowed = rule.mask.dense(rule.sizes, query.device)
    weights, lse = masked_softmax(scores, allowed, None if rule.sinks is None else rule.sinks.logits)
    output = torch.dropout(weights, rule.dropout, train=rule.dropout > 0) @ value

    return output.to(rule.signature.dtype), lse, weights


def masked_softmax(scores: Tensor, allowed: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights and lse of each row over the allowed keys; a row with none of them has weights 0 and lse -inf."""
    empty = ~allowed.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~allowed, -math.inf)
    scores = scores.masked_fill(empty, 0.0)  # any finite number: its weights are overwritten, and gradients stay finite
    if sinks is not None:
        sink = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(dim=-1)[..., : allowed.shape[-1]].masked_fill(empty, 0.0)
    lse = scores.logsumexp(dim=-1).masked_fill(empty.squeeze(-1), -math.inf)
    return weights, lse


def _every_cell(rule: Rule) -> Cells:
    rows = torch.arange(rule.sizes.queries, device=rule.signature.device)
    columns = torch.arange(rule.sizes.keys, device=rule.signature.device)
    return Cells(rows[:, None], columns[None, :], rule.sizes)
