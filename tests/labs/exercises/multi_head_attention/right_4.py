import torch


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).movedim(-2, 1)


def merge_heads(x):
    return torch.cat(tuple(x.unbind(1)), -1)


def many_heads(x, w_q, w_k, w_v, w_o, heads):
    return contributions(x, w_q, w_k, w_v, w_o, heads).sum(1)


def contributions(x, w_q, w_k, w_v, w_o, heads):
    w = w_q.shape[1] // heads
    out = []
    for h in range(heads):
        c = slice(h * w, (h + 1) * w)
        pattern = torch.softmax(x @ (w_q[:, c] @ w_k[:, c].T) @ x.mT / w**0.5, -1)
        out.append(pattern @ x @ (w_v[:, c] @ w_o[c]))
    return torch.stack(out, 1)
