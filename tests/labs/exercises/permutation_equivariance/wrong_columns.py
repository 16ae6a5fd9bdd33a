# kind: columns moved instead of rows
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_invariant


def is_equivariant(layer, x, order):
    moved = layer(x[:, order])
    return moved.shape == x.shape and torch.allclose(moved, layer(x)[:, order], atol=1e-5)


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
