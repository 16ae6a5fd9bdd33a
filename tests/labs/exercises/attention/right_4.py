import torch


def attend(q, k, v):
    d = q.shape[-1]
    m = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype)
    total = torch.zeros_like(m)
    o = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    ss = []
    for j in range(k.shape[-2]):
        s = (q * k[..., j : j + 1, :]).sum(-1) / d**0.5
        ss.append(s)
        n = torch.maximum(m, s)
        a = (m - n).exp()
        p = (s - n).exp()
        total = total * a + p
        o = o * a[..., None] + p[..., None] * v[..., j : j + 1, :]
        m = n
    w = (torch.stack(ss, -1) - m[..., None]).exp() / total[..., None]
    return o / total[..., None], w
