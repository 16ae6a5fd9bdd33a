"""A loop over tokens that carries a memory along; a column of ones keeps count of the weights."""

import torch


def feature_map(x):
    return torch.exp(x.clamp(-20, 20))


def with_ones(v):
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def divided(read):
    return read[..., :-1] / read[..., -1:]


def linear_attention(q, k, v):
    memory = torch.einsum("...jf,...jd->...fd", feature_map(k), with_ones(v))
    return divided(torch.einsum("...if,...fd->...id", feature_map(q), memory))


def causal_linear_attention(q, k, v):
    q, k, v = feature_map(q), feature_map(k), with_ones(v)
    memory = 0
    read = []
    for token in range(q.shape[-2]):
        memory = memory + k[..., token, :, None] * v[..., token, None, :]
        read.append((q[..., token, :, None] * memory).sum(-2))
    return divided(torch.stack(read, dim=-2))
