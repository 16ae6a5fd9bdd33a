import torch


def feature_map(x):
    x = x.clamp(-10, 10)
    return torch.cat([x.exp(), (-x).exp()], -1)


def linear_attention(q, k, v):
    o = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    r = feature_map(q) @ (feature_map(k).mT @ o)
    return r[..., :-1] / r[..., -1:]


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    o = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    memory = torch.zeros(*q.shape[:-2], q.shape[-1], o.shape[-1], dtype=v.dtype)
    out = []
    for a, b, c in zip(q.split(16, -2), k.split(16, -2), o.split(16, -2), strict=True):
        r = a @ memory + (a @ b.mT).tril() @ c
        memory = memory + b.mT @ c
        out.append(r[..., :-1] / r[..., -1:])
    return torch.cat(out, -2)
