# kind: only its own weight
from torch import Tensor


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    return weights * (1 - weights) * upstream


def scores_can_learn(allowed: Tensor) -> Tensor:
    return allowed & (allowed.sum(dim=-1, keepdim=True) > 1)


def values_can_learn(allowed: Tensor) -> Tensor:
    return allowed.clone()
