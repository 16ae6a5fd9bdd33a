# kind: weights do not sum to 1

from tests.labs.exercises.linear_attention.right_1 import causal_linear_attention, feature_map


def linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    above = q @ (k.mT @ v)
    below = k.sum((-1, -2), keepdim=True)
    return above / below
