# kind: quadratic after all
import torch

from tests.labs.exercises.linear_attention.right_1 import feature_map, linear_attention


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    rows = []
    for i in range(q.shape[-2]):
        weights = k[..., : i + 1, :] @ q[..., i, :, None]
        rows.append((weights * v[..., : i + 1, :]).sum(-2) / weights.sum(-2))
    return torch.stack(rows, dim=-2)
