# kind: it raises
import math

import torch
from torch import Tensor

from tests.labs.exercises.multi_head_attention.right_1 import merge_heads, split_heads


def each_head(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, heads: int) -> Tensor:
    q, k, v = split_heads(x @ w_q.T, heads), split_heads(x @ w_k, heads), split_heads(x @ w_v, heads)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def many_heads(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    return merge_heads(each_head(x, w_q, w_k, w_v, heads)) @ w_o


def contributions(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    slabs = w_o.reshape(heads, -1, w_o.shape[-1])
    return each_head(x, w_q, w_k, w_v, heads) @ slabs
