"""Linear layers with the fastest matrix product of torch for few rows, as in decoding on a CPU.

In: activations (..., in_features). Out: (..., out_features).
Does not know: what is projected. Memory: O(output).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_ROWS = 32
"""With at most this many rows, bfloat16 is faster as weight @ x^T."""
SPLIT_ROWS = range(4, 13)
"""Numbers of rows for which float32 is faster with the weight split."""
SPLIT_SIZE = 1536
"""Output features of a split."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x @ weight^T + bias, for x (..., in_features) and weight (out_features, in_features).

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 7.]])
    """
    count = x.numel() // max(x.shape[-1], 1)
    if not 0 < count <= MAX_ROWS or not _is_decoding(x, weight):
        return F.linear(x, weight, bias)
    if x.dtype is torch.bfloat16:
        output = _transposed_product(x.reshape(count, -1), weight)
    elif x.dtype is torch.float32 and count in SPLIT_ROWS and weight.shape[0] > SPLIT_SIZE:
        output = _split_product(x.reshape(count, -1), weight)
    else:
        return F.linear(x, weight, bias)
    return (output if bias is None else output + bias).view(*x.shape[:-1], -1)


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch's layer gives it
        return linear(input, self.weight, self.bias)


def _is_decoding(x: Tensor, weight: Tensor) -> bool:
    """Whether this is a plain product on a CPU: no gradients, no compilation, no autocast."""
    needs_torch = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    return x.device.type == "cpu" and x.dtype == weight.dtype and not needs_torch


def _transposed_product(x: Tensor, weight: Tensor) -> Tensor:
    """The product as (weight @ x^T)^T, which takes torch two thirds of the time in bfloat16."""
    return torch.mv(weight, x[0])[None] if x.shape[0] == 1 else torch.mm(weight, x.t()).t()


def _split_product(x: Tensor, weight: Tensor) -> Tensor:
    """The product with the weight split: a tall float32 weight takes a third longer in one product."""
    return torch.cat([torch.mm(x, rows.t()) for rows in weight.split(SPLIT_SIZE)], dim=1)
