# kind: the input is changed
import torch
from torch import Tensor

from tests.labs.exercises.causal_mask.right_1 import causal_mask


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    length = scores.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores.masked_fill_(future, float("-inf"))
    if is_real is not None:
        scores = scores.masked_fill(~is_real.unsqueeze(-2), float("-inf"))
    return scores.softmax(-1)
