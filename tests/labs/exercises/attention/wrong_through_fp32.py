# kind: digits are lost
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, dim=-1)
    return (weights @ v.float()).to(v.dtype), weights.to(v.dtype)
