import torch


def score_gradient(weights, upstream):
    j = torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)
    return torch.einsum("...jk,...j->...k", j, upstream)


def scores_can_learn(allowed):
    others = allowed.long().cumsum(-1)[..., -1:] - allowed.long()
    return allowed & (others >= 1)


def values_can_learn(allowed):
    return allowed.clone()
