# kind: quadratic after all
import torch

from tests.labs.exercises.linear_attention.right_1 import feature_map, linear_attention


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    rows = []
    for i in range(1, q.shape[-2] + 1):
        rows.append(linear_attention_mapped(q[..., i - 1 : i, :], k[..., :i, :], v[..., :i, :]))
    return torch.cat(rows, dim=-2)


def linear_attention_mapped(q, k, v):
    return q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1))
