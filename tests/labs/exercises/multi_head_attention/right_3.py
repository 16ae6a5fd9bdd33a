import torch
import torch.nn.functional as F
from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).permute(0, 2, 1, 3)


def merge_heads(x: Tensor) -> Tensor:
    return torch.einsum("bhnw->bnhw", x).flatten(-2)


def attended(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, heads: int) -> Tensor:
    q, k, v = (split_heads(torch.einsum("bnd,df->bnf", x, w), heads) for w in (w_q, w_k, w_v))
    return F.scaled_dot_product_attention(q, k, v)


def many_heads(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    return torch.matmul(merge_heads(attended(x, w_q, w_k, w_v, heads)), w_o)


def contributions(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    outputs = attended(x, w_q, w_k, w_v, heads)
    alone = []
    for head in range(heads):
        only = torch.zeros_like(outputs)
        only[:, head] = outputs[:, head]
        alone.append(merge_heads(only) @ w_o)
    return torch.stack(alone, dim=1)
