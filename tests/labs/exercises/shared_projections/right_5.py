import torch


def as_one_head(w_q, w_k, w_v, w_o, heads):
    return w_q, w_k, w_v @ sum(w_o.chunk(heads)), torch.eye(w_o.shape[1], dtype=w_o.dtype)


def largest_rank(d, w, heads, shared):
    a = torch.randn(500, d, dtype=torch.float64)
    m = torch.randn(d, w if shared else w * heads, dtype=torch.float64) @ torch.randn(
        w if shared else w * heads, d, dtype=torch.float64
    )
    return torch.linalg.matrix_rank(a @ m)


def gradient_of_w_o(head, upstream, heads):
    return torch.einsum("hni,nd->hid", head.expand(heads, *head.shape), upstream).flatten(0, 1)
