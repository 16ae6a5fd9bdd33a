"""Attention rollout (Abnar & Zuidema, 2020, arXiv 2005.00928), one matrix-vector product per layer.

The attention weights of each layer, averaged over its heads, are mixed with the identity for the residual stream and
multiplied along the layers. Rollout shows where information could come from. It ignores values, feed-forward layers and
signs, so it does not show that the information was used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.matrix.matrix import AttentionMatrix


def rollout(
    matrices: Sequence[AttentionMatrix],
    token: int,
    *,
    direction: Literal["backward", "forward"] = "backward",
    residual: float = 0.5,
) -> Tensor:
    """The attention rollout of one token.

    Args:
        matrices: one square matrix per layer in order of execution, (heads, tokens, tokens) or
            (batch, heads, tokens, tokens).
        token: position of the token.
        direction: "backward" gives the share of each input in this token of the last layer, "forward" the share of
            this input in each token of the last layer.
        residual: the weight of the residual stream in each layer.

    Returns:
        (tokens,) or (batch, tokens).

    Raises:
        ShapeError: the matrices are not square, have no head axis or differ in shape.
        ValueError: there are no matrices, or the direction is unknown.
        TypeError: `matrices` is a trace or another mapping.

    >>> matrix = AttentionMatrix(torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))
    >>> rollout([matrix, matrix], 3)
    tensor([0.1875, 0.1875, 0.1875, 0.4375])
    """
    if isinstance(matrices, Mapping):
        raise TypeError(
            f"rollout: expected a list of matrices, got a {type(matrices).__name__}; pass list(trace.values()), or the "
            "layers of one stack"
        )
    if not matrices:
        raise ValueError("rollout: expected at least one matrix, got none")
    *leading, queries, keys = matrices[0].shape
    if (
        any(matrix.shape != matrices[0].shape for matrix in matrices)
        or queries != keys
        or "head" not in matrices[0].axes
    ):
        shapes = ", ".join(str(tuple(matrix.shape)) for matrix in matrices)
        raise ShapeError(f"rollout: expected square matrices (..., heads, tokens, tokens) of one shape, got {shapes}")
    if direction not in ("backward", "forward"):
        raise ValueError(f"rollout: expected direction 'backward' or 'forward', got {direction!r}")
    share = torch.zeros(*leading[:-1], keys, dtype=matrices[0].dtype, device=matrices[0].device)
    share[..., token] = 1.0
    for matrix in reversed(matrices) if direction == "backward" else matrices:
        each = share[..., None, :, None].expand(*leading, -1, 1)
        moved = (matrix.T @ each if direction == "backward" else matrix @ each).squeeze(-1).mean(-2)
        share = residual * share + (1 - residual) * moved
    return share
