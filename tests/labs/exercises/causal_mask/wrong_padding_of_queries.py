# kind: padding is attended to
import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    length = scores.shape[-1]
    allowed = torch.ones(length, length, dtype=torch.bool).tril().expand(scores.shape)
    if is_real is not None:
        allowed = allowed & is_real.unsqueeze(-1)
    blind = ~allowed.any(dim=-1, keepdim=True)
    masked = scores.masked_fill(~allowed, float("-inf")).masked_fill(blind, 0.0)
    return masked.softmax(dim=-1).masked_fill(blind, 0.0)
