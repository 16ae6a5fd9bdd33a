# kind: rows of the gradient do not sum to 0
from torch import Tensor


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    mean = upstream.mean(dim=-1, keepdim=True)
    return weights * (upstream - mean)


def scores_can_learn(allowed: Tensor) -> Tensor:
    return allowed & (allowed.sum(dim=-1, keepdim=True) > 1)


def values_can_learn(allowed: Tensor) -> Tensor:
    return allowed.clone()
