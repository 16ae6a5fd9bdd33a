# kind: rows do not sum to 1
import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    length = scores.shape[-1]
    weights = scores.softmax(dim=-1)
    if is_real is not None:
        weights = weights * is_real.unsqueeze(-2)
    return weights * torch.ones(length, length, dtype=scores.dtype).tril()
