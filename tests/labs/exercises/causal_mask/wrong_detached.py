# kind: no gradient
import torch
from torch import Tensor

from tests.labs.exercises.causal_mask.right_1 import causal_mask


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    length = scores.shape[-1]
    allowed = torch.ones(length, length, dtype=torch.bool).tril().expand(scores.shape)
    if is_real is not None:
        allowed = allowed & is_real.unsqueeze(-2)
    blind = ~allowed.any(dim=-1, keepdim=True)
    masked = scores.masked_fill(~allowed, float("-inf")).masked_fill(blind, 0.0)
    return masked.detach().softmax(dim=-1).masked_fill(blind, 0.0)
