# kind: wrong scale
import math

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT / math.sqrt(len(k)), dim=-1)
    return weights @ v, weights
