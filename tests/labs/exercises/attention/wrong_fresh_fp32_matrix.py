# kind: wrong dtype
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.zeros(*q.shape[:-1], k.shape[-2])
    for row in range(q.shape[-2]):
        scores = (q[..., row : row + 1, :] * k).sum(-1) / math.sqrt(q.shape[-1])
        weights[..., row, :] = torch.softmax(scores, dim=-1)
    return weights.to(v.dtype) @ v, weights
