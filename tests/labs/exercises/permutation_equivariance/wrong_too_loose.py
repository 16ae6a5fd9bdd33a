# kind: a difference is overlooked
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_invariant


def is_equivariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x)[order], atol=0.1)


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
