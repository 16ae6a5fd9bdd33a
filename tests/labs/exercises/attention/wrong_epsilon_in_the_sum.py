# kind: wrong weights
import torch


def attend(q, k, v):
    s = q @ k.mT / q.shape[-1] ** 0.5
    e = torch.exp(s - s.max())
    w = e / (e.sum(-1, keepdim=True) + 1e-6)
    return w @ v, w
