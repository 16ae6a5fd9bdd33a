# kind: quadratic after all
import torch
import torch.nn.functional as F


def feature_map(x):
    return F.elu(x) + 1


def linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    above = q @ (k.mT @ v)
    below = q @ k.sum(-2).unsqueeze(-1)
    return above / below


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    rows = []
    for i in range(q.shape[-2]):
        weights = k[..., : i + 1, :] @ q[..., i, :, None]
        rows.append((weights * v[..., : i + 1, :]).sum(-2) / weights.sum(-2))
    return torch.stack(rows, dim=-2)
