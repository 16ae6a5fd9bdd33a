# kind: NaN in a row
import torch


def causal_mask(length):
    return torch.full((length, length), -torch.inf).triu(1)


def causal_weights(scores, is_real=None):
    n = scores.shape[-1]
    ok = torch.ones(n, n, dtype=torch.bool).tril()
    if is_real is not None:
        ok = ok & is_real[..., None, :]
    e = scores.exp() * ok
    return e / e.sum(-1, keepdim=True).clamp(min=1e-9)
