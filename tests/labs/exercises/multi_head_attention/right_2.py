import torch
from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    return torch.stack(x.chunk(heads, dim=-1), dim=1)


def merge_heads(x: Tensor) -> Tensor:
    return torch.cat(list(x.unbind(dim=1)), dim=-1)


def contributions(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    width = len(w_o) // heads
    parts = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        q, k, v = x @ w_q[:, own], x @ w_k[:, own], x @ w_v[:, own]
        weights = (q @ k.mT * width**-0.5).softmax(-1)
        parts.append(weights @ v @ w_o[own])
    return torch.stack(parts, dim=1)


def many_heads(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    return contributions(x, w_q, w_k, w_v, w_o, heads).sum(dim=1)
