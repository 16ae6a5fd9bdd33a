"""Gradients once, and a refusal by name for gradients of gradients.

The fused and streaming engines compute first derivatives by hand. Wrapping that computation in `first_order` makes a
second differentiation raise an error that says which engine and what to use instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnscope.errors import UnsupportedError

Gradients = tuple[Tensor | None, ...]


def first_order(engine: str, compute: Callable[..., Gradients], *tensors: Tensor | None) -> Gradients:
    """`compute(*tensors)`; differentiating the result raises UnsupportedError."""
    return _FirstOrder.apply(engine, compute, *tensors)


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, engine: str, compute: Callable[..., Gradients], *tensors: Tensor | None) -> Gradients:
        ctx.engine = engine
        return compute(*tensors)

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        raise UnsupportedError(
            f"attend: second-order gradients were asked of the {ctx.engine} engine, which has first-order ones only; "
            "use backend='reference', which builds the n x n matrix"
        )
