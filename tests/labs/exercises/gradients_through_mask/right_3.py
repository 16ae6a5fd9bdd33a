import torch
from torch import Tensor


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    flat, above = weights.reshape(-1, weights.shape[-1]), upstream.reshape(-1, weights.shape[-1])
    gradient = torch.zeros_like(flat)
    for row, (shares, wishes) in enumerate(zip(flat, above, strict=True)):
        for key in range(len(shares)):
            own = torch.zeros_like(shares)
            own[key] = 1
            gradient[row, key] = torch.dot(wishes, shares * (own - shares[key]))
    return gradient.reshape(weights.shape)


def scores_can_learn(allowed: Tensor) -> Tensor:
    weights = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    return (weights > 0) & (weights < 1)


def values_can_learn(allowed: Tensor) -> Tensor:
    weights = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    return weights > 0
