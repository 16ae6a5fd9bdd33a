"""Dense attention that rounds every intermediate result to the dtype of its inputs, and the fp64 truth.

It imports nothing from the package, so that a mistake in a mask or a score modifier is not made on both sides.
Memory: O(n^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

Formula = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""Changes scores (batch, heads, queries, keys), given the parameters by name."""


class DenseAttention(NamedTuple):
    """Results of dense attention."""

    output: Tensor  #: (batch, heads, queries, value dim)
    lse: Tensor  #: (batch, heads, queries), -inf for rows without keys
    weights: Tensor  #: (batch, heads, queries, keys)
    allowed: Tensor  #: booleans (batch, heads, queries, keys)


def dense_attention(leaves: Mapping[str, Tensor], allowed: Tensor, formula: Formula | None = None) -> DenseAttention:
    """Compute attention of `leaves["query"]`, "key" and "value" in their dtype; differentiable.

    Args:
        leaves: The tensors (batch, heads, tokens, dim), parameters of the scores, and "sinks" (heads) if there are any.
        allowed: Booleans (batch or 1, 1, queries, keys).
        formula: What happens to the scores before the softmax.
    """
    query = leaves["query"]
    group = query.shape[1] // leaves["key"].shape[1]
    key, value = (leaves[name].repeat_interleave(group, dim=1) for name in ("key", "value"))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if formula is not None:
        scores = formula(scores, leaves)
    empty = ~allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
    if (sinks := leaves.get("sinks")) is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1).masked_fill(empty, 0.0)[..., : allowed.shape[-1]]
    lse = scores.logsumexp(-1).masked_fill(empty[..., 0], -math.inf)
    return DenseAttention(weights @ value, lse, weights, allowed.expand(weights.shape))


def with_gradients(
    output: Tensor, lse: Tensor, leaves: Mapping[str, Tensor], output_gradient: Tensor, lse_gradient: Tensor
) -> dict[str, Tensor]:
    """Return output, lse and the gradients of all leaves, on the CPU in fp64.

    Args:
        output: The output, computed from the leaves.
        lse: The lse, computed from the leaves; rows of -inf pass no gradient on.
        leaves: Tensors that require gradients.
        output_gradient: The gradient that arrives at the output.
        lse_gradient: The gradient that arrives at the lse.
    """
    finite = lse.masked_fill(lse == -math.inf, 0.0) * lse_gradient.to(lse)
    ((output * output_gradient.to(output)).sum().to(lse.dtype) + finite.sum()).backward()
    results = {"output": output.detach(), "lse": lse.detach()}
    for name, leaf in leaves.items():
        results[f"gradient of {name}"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return to_double(results)


def to_double(results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return results on the CPU in fp64; on the CPU first, because some devices have no fp64."""
    return {name: tensor.detach().cpu().double() for name, tensor in results.items()}
