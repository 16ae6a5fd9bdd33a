# kind: heads that differ
from torch import Tensor

from tests.labs.exercises.shared_projections.right_1 import as_one_head, largest_rank


def gradient_of_w_o(head: Tensor, upstream: Tensor, heads: int) -> Tensor:
    side_by_side = head.repeat_interleave(heads, dim=-1)
    return side_by_side.T @ upstream
