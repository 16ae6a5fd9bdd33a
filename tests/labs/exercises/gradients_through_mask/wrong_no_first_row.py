# kind: a score is left out
from torch import Tensor

from tests.labs.exercises.gradients_through_mask.right_1 import score_gradient, values_can_learn


def scores_can_learn(allowed: Tensor) -> Tensor:
    return allowed.tril() & (allowed.sum(dim=-1, keepdim=True) > 1)
