# kind: NaN in a row

from tests.labs.exercises.linear_attention.right_1 import feature_map, linear_attention


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    memory = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(-3).roll(1, -3)
    total = k.cumsum(-2).roll(1, -2)
    memory[..., 0, :, :] = 0
    total[..., 0, :] = 0
    above = (q.unsqueeze(-2) @ memory).squeeze(-2)
    below = (q * total).sum(-1, keepdim=True)
    return above / below
