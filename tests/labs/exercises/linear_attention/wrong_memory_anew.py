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
    for i in range(1, q.shape[-2] + 1):
        rows.append(linear_attention_mapped(q[..., i - 1 : i, :], k[..., :i, :], v[..., :i, :]))
    return torch.cat(rows, dim=-2)


def linear_attention_mapped(q, k, v):
    return q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1))
