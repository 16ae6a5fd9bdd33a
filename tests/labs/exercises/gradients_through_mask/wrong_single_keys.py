# kind: nothing to choose
from torch import Tensor


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    mean = (weights * upstream).sum(dim=-1, keepdim=True)
    return weights * (upstream - mean)


def scores_can_learn(allowed: Tensor) -> Tensor:
    return allowed


def values_can_learn(allowed: Tensor) -> Tensor:
    return allowed.clone()
