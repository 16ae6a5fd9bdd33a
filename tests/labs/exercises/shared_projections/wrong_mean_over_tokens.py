# kind: wrong gradient
import torch
from torch import Tensor

from tests.labs.exercises.shared_projections.right_1 import as_one_head, largest_rank


def gradient_of_w_o(head: Tensor, upstream: Tensor, heads: int) -> Tensor:
    side_by_side = torch.cat([head] * heads, dim=-1)
    return side_by_side.T @ upstream / len(head)
