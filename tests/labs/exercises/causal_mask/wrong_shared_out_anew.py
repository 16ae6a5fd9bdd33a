# kind: NaN in a row
import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    length = scores.shape[-1]
    weights = scores.softmax(dim=-1) * torch.ones(length, length, dtype=scores.dtype).tril()
    if is_real is not None:
        weights = weights * is_real.unsqueeze(-2)
    return weights / weights.sum(-1, keepdim=True)
