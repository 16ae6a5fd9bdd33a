"""First-order gradients, and an error that names the backend for gradients of gradients.

The fused and streaming backends implement first derivatives by hand. `torch.autograd.function.once_differentiable`
would reject a second differentiation without saying which call it was or what to use instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnscope.errors import UnsupportedError

Gradients = tuple[Tensor | None, ...]


def first_order(backend: str, compute: Callable[..., Gradients], *tensors: Tensor | None) -> Gradients:
    """Return `compute(*tensors)`; differentiating the result raises UnsupportedError."""
    return _FirstOrder.apply(backend, compute, *tensors)


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend: str, compute: Callable[..., Gradients], *tensors: Tensor | None) -> Gradients:
        ctx.backend = backend
        return compute(*tensors)

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        raise UnsupportedError(
            f"attend: the {ctx.backend} backend does not support second-order gradients; "
            "use backend='reference', which builds the n x n weights"
        )
