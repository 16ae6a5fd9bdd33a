# kind: sums instead of means

from tests.labs.exercises.linear_attention.right_1 import causal_linear_attention, feature_map


def linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    return q @ (k.mT @ v)
