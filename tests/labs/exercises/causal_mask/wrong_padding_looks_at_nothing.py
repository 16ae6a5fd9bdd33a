# kind: padding queries are masked
import torch


def causal_mask(length):
    return torch.full((length, length), -torch.inf).triu(1)


def causal_weights(scores, is_real=None):
    n = scores.shape[-1]
    ok = torch.ones(n, n, dtype=torch.bool).tril()
    if is_real is not None:
        ok = ok & is_real[..., None, :] & is_real[..., :, None]
    s = scores.masked_fill(~ok, torch.finfo(scores.dtype).min)
    return s.softmax(-1) * ok
