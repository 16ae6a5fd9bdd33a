# kind: the input is changed
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q /= math.sqrt(q.shape[-1])
    weights = torch.softmax(q @ k.mT, dim=-1)
    return weights @ v, weights
