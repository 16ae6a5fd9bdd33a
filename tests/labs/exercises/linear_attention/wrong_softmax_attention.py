# kind: other weights
import torch.nn.functional as F

from tests.labs.exercises.linear_attention.right_1 import causal_linear_attention, feature_map


def linear_attention(q, k, v):
    return F.softmax(q @ k.mT, dim=-1) @ v
