# kind: wrong weights
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    weights = torch.softmax(scores / math.sqrt(q.shape[-1]), dim=-1)
    return weights @ v, weights
