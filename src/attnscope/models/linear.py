"""Linear layers, by the fastest of torch's ways for a few rows, which is what decoding on a CPU has.

In: activations (..., width). Out: (..., rows of the weight).
Does not know: what is projected. Memory: O(output).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 32
"""Up to so many rows, bfloat16 is faster from the other side."""
FEW_IN_PIECES = range(4, 13)
"""For so many rows, float32 is faster in pieces."""
PIECE = 1536
"""Outputs of such a piece."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x @ weight^T + bias.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 7.]])
    """
    count = x.numel() // max(x.shape[-1], 1)
    if not 0 < count <= FEW or not _decoding(x, weight):
        return F.linear(x, weight, bias)
    if x.dtype is torch.bfloat16:
        output = _from_the_other_side(x.reshape(count, -1), weight)
    elif x.dtype is torch.float32 and count in FEW_IN_PIECES and weight.shape[0] > PIECE:
        output = _in_pieces(x.reshape(count, -1), weight)
    else:
        return F.linear(x, weight, bias)
    return (output if bias is None else output + bias).view(*x.shape[:-1], -1)


class Linear(nn.Linear):
    """torch's linear layer, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch's layer gives it
        return linear(input, self.weight, self.bias)


def _decoding(x: Tensor, weight: Tensor) -> bool:
    """Whether nothing but the plain product is wanted of a CPU: no gradients, no tracing, no change of dtype."""
    wanted = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    return x.device.type == "cpu" and x.dtype == weight.dtype and not wanted


def _from_the_other_side(x: Tensor, weight: Tensor) -> Tensor:
    """As weight @ x^T, transposed: with the long side first, torch is half as fast again in bfloat16."""
    return torch.mv(weight, x[0])[None] if x.shape[0] == 1 else torch.mm(weight, x.t()).t()


def _in_pieces(x: Tensor, weight: Tensor) -> Tensor:
    """A few rows take a third longer against a tall matrix of float32 than against pieces of it."""
    return torch.cat([torch.mm(x, rows.t()) for rows in weight.split(PIECE)], dim=1)
