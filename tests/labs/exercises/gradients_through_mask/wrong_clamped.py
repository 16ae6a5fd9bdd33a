# kind: masked scores get a gradient
from torch import Tensor

from tests.labs.exercises.gradients_through_mask.right_1 import scores_can_learn, values_can_learn


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    safe = weights.clamp(min=1e-6)
    mean = (safe * upstream).sum(dim=-1, keepdim=True)
    return safe * (upstream - mean)
