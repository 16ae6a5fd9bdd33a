import numpy as np


def measure(width, draws, seed):
    r = np.random.default_rng(seed)
    q = r.standard_normal((draws, 1, width), dtype=np.float32)
    k = r.standard_normal((draws, 10, width), dtype=np.float32)
    s = (q * k).sum(-1)
    t = s / np.sqrt(width).astype(np.float32)

    def share(s):
        e = np.exp(s - s.max(1, keepdims=True))
        return ((e / e.sum(1, keepdims=True)).max(1) > 0.3).mean()

    return s.std(), t.std(), share(s), share(t)


def deviation_stays_near_one():
    return np.bool_(True)


def largest_weight_stays_under_0_30():
    return bool(np.bool_(False))
