# kind: wrong mean of values
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return weights @ v / k.shape[-2], weights
