"""Rollout: how far a token reaches through the layers, one matrix-vector product a layer.

Attention of each layer, averaged over its heads, is mixed with the residual stream, and the mixtures are multiplied
along the layers (Abnar and Zuidema 2020, arXiv 2005.00928). It shows where weights could carry information from; it
knows nothing of values, feed-forward layers or signs, so it is no proof that information was used.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Backward: the share of each input in a token of the last layer. Forward: the share of an input in each token.

    Matrices are in order of execution, square, with leading axes (head,) or (batch, head); the result is (tokens,) or
    (batch, tokens). `residual` is the weight of a token's own past in each layer.

    >>> matrix = AttentionMatrix(torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))
    >>> rollout([matrix, matrix], 3)
    tensor([0.1875, 0.1875, 0.1875, 0.4375])
    """
    if not matrices:
        raise ValueError("rollout: wants at least one matrix")
    *leading, queries, keys = matrices[0].shape
    if (
        any(matrix.shape != matrices[0].shape for matrix in matrices)
        or queries != keys
        or "head" not in matrices[0].axes
    ):
        shapes = ", ".join(str(tuple(matrix.shape)) for matrix in matrices)
        raise ShapeError(f"rollout: wants square matrices (..., head, tokens, tokens) of one shape, got {shapes}")
    if direction not in ("backward", "forward"):
        raise ValueError(f"rollout: direction is 'backward' or 'forward', got {direction!r}")
    share = torch.zeros(*leading[:-1], keys, dtype=matrices[0].dtype, device=matrices[0].device)
    share[..., token] = 1.0
    for matrix in reversed(matrices) if direction == "backward" else matrices:
        each = share[..., None, :, None].expand(*leading, -1, 1)
        moved = (matrix.T @ each if direction == "backward" else matrix @ each).squeeze(-1).mean(-2)
        share = residual * share + (1 - residual) * moved
    return share
