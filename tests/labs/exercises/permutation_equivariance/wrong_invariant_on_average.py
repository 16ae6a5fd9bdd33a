# kind: equivariance taken for invariance
import torch


def is_equivariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)


def is_invariant(layer, x, order):
    return bool((layer(x[order]).mean() - layer(x).mean()).abs() < 1e-3)


def counterexample(layer, length, width):
    x = torch.randn(length, width)
    o = torch.roll(torch.arange(length), 1)
    return None if is_equivariant(layer, x, o) else (x, o)
