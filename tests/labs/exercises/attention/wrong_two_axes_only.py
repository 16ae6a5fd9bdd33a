# kind: it raises
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.mm(q, k.t()) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, dim=-1)
    return torch.mm(weights, v), weights
