# kind: they do not add up
import torch
from torch import Tensor

from tests.labs.exercises.multi_head_attention.right_1 import each_head, many_heads, merge_heads, split_heads


def contributions(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    slabs = torch.stack([w_o[head::heads] for head in range(heads)])
    return each_head(x, w_q, w_k, w_v, heads) @ slabs
