# kind: wrong gradient
import torch
from torch import Tensor


def as_one_head(
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    slabs = w_o.reshape(heads, -1, w_o.shape[-1])
    return w_q, w_k, w_v, slabs.sum(dim=0)


def largest_rank(d: int, w: int, heads: int, shared: bool) -> int:
    return min(d, w if shared else heads * w)


def gradient_of_w_o(head: Tensor, upstream: Tensor, heads: int) -> Tensor:
    side_by_side = torch.cat([head] * heads, dim=-1)
    return side_by_side.T @ upstream / len(head)
