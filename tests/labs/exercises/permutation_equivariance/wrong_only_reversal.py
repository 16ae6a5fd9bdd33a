# kind: a counterexample is missed
import torch


def is_equivariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x)[order], rtol=1e-4, atol=1e-5)


def is_invariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x), rtol=1e-4, atol=1e-5)


def counterexample(layer, length, width):
    x, order = torch.randn(length, width), torch.arange(length).flip(0)
    return None if is_equivariant(layer, x, order) else (x, order)
