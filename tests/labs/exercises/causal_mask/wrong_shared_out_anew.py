# kind: NaN in a row
import torch
from torch import Tensor

from tests.labs.exercises.causal_mask.right_1 import causal_mask


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    length = scores.shape[-1]
    weights = scores.softmax(dim=-1) * torch.ones(length, length, dtype=scores.dtype).tril()
    if is_real is not None:
        weights = weights * is_real.unsqueeze(-2)
    return weights / weights.sum(-1, keepdim=True)
