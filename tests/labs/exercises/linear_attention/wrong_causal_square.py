# kind: a square is built

from tests.labs.exercises.linear_attention.right_1 import feature_map, linear_attention


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    weights = (q @ k.mT).tril()
    return weights @ v / weights.sum(-1, keepdim=True)
