# kind: the output without the head
import torch


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


def _heads(x, w_q, w_k, w_v, heads):
    q, k, v = (split_heads(x @ w, heads) for w in (w_q, w_k, w_v))
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def many_heads(x, w_q, w_k, w_v, w_o, heads):
    return merge_heads(_heads(x, w_q, w_k, w_v, heads)) @ w_o


def contributions(x, w_q, w_k, w_v, w_o, heads):
    out = []
    for h in range(heads):
        o = _heads(x, w_q, w_k, w_v, heads)
        o[:, h] = 0
        out.append(merge_heads(o) @ w_o)
    return torch.stack(out, 1)
