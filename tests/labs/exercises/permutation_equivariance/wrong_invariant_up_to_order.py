# kind: equivariance taken for invariance
import torch


def is_equivariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x)[order], rtol=1e-4, atol=1e-5)


def is_invariant(layer, x, order):
    return is_equivariant(layer, x, order)


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
