# kind: a square is built

from tests.labs.exercises.linear_attention.right_1 import causal_linear_attention, feature_map


def linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    above = (q @ k.mT) @ v
    below = q @ k.sum(-2).unsqueeze(-1)
    return above / below
