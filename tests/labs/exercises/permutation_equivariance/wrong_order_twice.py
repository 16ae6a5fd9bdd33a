# kind: the order is applied the wrong way
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_invariant


def is_equivariant(layer, x, order):
    return torch.allclose(layer(x[order])[order], layer(x), rtol=1e-4, atol=1e-5)


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
