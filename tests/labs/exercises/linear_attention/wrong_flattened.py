# kind: wrong shape
import torch.nn.functional as F


def feature_map(x):
    return F.elu(x).flatten(-2) + 1


def linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    above = q @ (k.mT @ v)
    below = q @ k.sum(-2).unsqueeze(-1)
    return above / below


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    memory = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(-3)
    above = (q.unsqueeze(-2) @ memory).squeeze(-2)
    below = (q * k.cumsum(-2)).sum(-1, keepdim=True)
    return above / below
