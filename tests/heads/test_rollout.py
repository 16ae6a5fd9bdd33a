"""Rollout against the product of dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.attention import Causal
from attnscope.errors import ShapeError
from attnscope.heads import rollout
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace
from tests.matrix.test_matrix import SHAPES, Subject


def dense_rollout(layers: list[Tensor], token: int, residual: float = 0.5) -> Tensor:
    """The row of a token in the product of (residual * I + (1 - residual) * mean over heads), last layer first."""
    keys = layers[0].shape[-1]
    product = torch.eye(keys, dtype=layers[0].dtype)
    for weights in layers:
        product = (residual * torch.eye(keys, dtype=weights.dtype) + (1 - residual) * weights.mean(-3)) @ product
    return product[..., token, :]


def test_rollout_is_a_row_or_column_of_the_product() -> None:
    subjects = [Subject(mask, "plain", SHAPES["square"]) for mask in ("causal", "window", "full")]
    layers = [subject.matrix for subject in subjects]
    dense = [subject.dense() for subject in subjects]
    torch.testing.assert_close(rollout(layers, 40), dense_rollout(dense, 40))
    forward = torch.stack([dense_rollout(dense, token) for token in range(73)], -2)[..., 40]
    torch.testing.assert_close(rollout(layers, 40, direction="forward"), forward)


def test_invalid_arguments_raise() -> None:
    matrix = AttentionMatrix(torch.randn(2, 3, 20, 8), torch.randn(2, 3, 20, 8), mask=Causal())
    with pytest.raises(ShapeError, match="one shape"):
        rollout([matrix, matrix.head(0)], 3)
    with pytest.raises(ShapeError, match="square matrices"):
        rollout([matrix.head(1)], 3)
    with pytest.raises(ValueError, match="at least one matrix"):
        rollout([], 3)
    with pytest.raises(TypeError, match=r"expected a list of matrices, got a Trace; pass list\(trace\.values\(\)\)"):
        rollout(Trace.from_attentions([torch.eye(4)[None, None]]), 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="sideways"):
        rollout([matrix], 3, direction="sideways")  # pyright: ignore[reportArgumentType]
