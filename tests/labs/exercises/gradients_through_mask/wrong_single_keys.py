# kind: nothing to choose
from torch import Tensor

from tests.labs.exercises.gradients_through_mask.right_1 import score_gradient, values_can_learn


def scores_can_learn(allowed: Tensor) -> Tensor:
    return allowed
