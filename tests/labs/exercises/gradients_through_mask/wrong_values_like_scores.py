# kind: a value is left out
from torch import Tensor

from tests.labs.exercises.gradients_through_mask.right_1 import score_gradient, scores_can_learn


def values_can_learn(allowed: Tensor) -> Tensor:
    return scores_can_learn(allowed)
