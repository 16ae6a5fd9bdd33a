# kind: wrong share of the output
import torch
from torch import Tensor

from tests.labs.exercises.multi_head_attention.right_1 import many_heads, merge_heads, split_heads


def contributions(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    output = many_heads(x, w_q, w_k, w_v, w_o, heads)
    return torch.stack([output / heads] * heads, dim=1)
