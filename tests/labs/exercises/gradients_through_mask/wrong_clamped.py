# kind: masked scores get a gradient
from torch import Tensor


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    safe = weights.clamp(min=1e-6)
    mean = (safe * upstream).sum(dim=-1, keepdim=True)
    return safe * (upstream - mean)


def scores_can_learn(allowed: Tensor) -> Tensor:
    return allowed & (allowed.sum(dim=-1, keepdim=True) > 1)


def values_can_learn(allowed: Tensor) -> Tensor:
    return allowed.clone()
