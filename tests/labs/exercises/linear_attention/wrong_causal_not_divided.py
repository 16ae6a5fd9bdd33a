# kind: sums instead of means

from tests.labs.exercises.linear_attention.right_1 import feature_map, linear_attention


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    memory = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(-3)
    return (q.unsqueeze(-2) @ memory).squeeze(-2)
