# kind: scaled by what was measured
import torch


def measure(width, draws, seed):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(draws, width, generator=g)
    k = torch.randn(draws, 10, width, generator=g)
    s = torch.einsum("nd,nkd->nk", q, k)
    t = s / s.std()
    return (
        s.std().item(),
        t.std().item(),
        (s.softmax(1).amax(1) > 0.3).float().mean().item(),
        (t.softmax(1).amax(1) > 0.3).float().mean().item(),
    )


def deviation_stays_near_one():
    return True


def largest_weight_stays_under_0_30():
    return False
