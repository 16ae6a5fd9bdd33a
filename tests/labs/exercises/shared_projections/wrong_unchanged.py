# kind: wrong shape
from torch import Tensor

from tests.labs.exercises.shared_projections.right_1 import gradient_of_w_o, largest_rank


def as_one_head(
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return w_q, w_k, w_v, w_o
