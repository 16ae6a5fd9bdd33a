# kind: a counterexample where there is none
import torch


def is_equivariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x)[order], rtol=1e-4, atol=1e-5)


def is_invariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x), rtol=1e-4, atol=1e-5)


def counterexample(layer, length, width):
    return torch.randn(length, width), torch.arange(length).roll(1)
