# kind: the future leaks
import torch
from torch import Tensor

from tests.labs.exercises.causal_mask.right_1 import causal_weights


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(2)
