# kind: drawn, not worked out
import torch


def moments(width, q_deviation, k_deviation):
    q = torch.randn(100000, width) * q_deviation
    k = torch.randn(100000, width) * k_deviation
    d = (q * k).sum(-1)
    return d.mean().item(), d.var().item()


def scaled_moments(width, q_deviation, k_deviation):
    m, v = moments(width, q_deviation, k_deviation)
    return m, v / width


def weight_of_the_large_one(score, times, keys):
    s = torch.full((keys,), float(score))
    s[0] *= times
    return s.softmax(0)[0].item()
