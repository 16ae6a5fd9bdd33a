import torch
from torch import Tensor


def score_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    jacobian = torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)
    return torch.einsum("...jk,...j->...k", jacobian, upstream)


def scores_can_learn(allowed: Tensor) -> Tensor:
    rows = [row if int(row.sum()) >= 2 else torch.zeros_like(row) for row in allowed]
    return torch.stack(rows)


def values_can_learn(allowed: Tensor) -> Tensor:
    return torch.where(allowed, True, False)
