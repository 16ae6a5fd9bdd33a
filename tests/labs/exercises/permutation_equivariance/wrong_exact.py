# kind: rounding taken for a difference
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_invariant


def is_equivariant(layer, x, order):
    return torch.equal(layer(x[order]), layer(x)[order])


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
