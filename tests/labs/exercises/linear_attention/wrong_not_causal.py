# kind: the future leaks

from tests.labs.exercises.linear_attention.right_1 import feature_map, linear_attention


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    return q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1))
