# kind: invariance taken for equivariance
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_invariant


def is_equivariant(layer, x, order):
    moved, plain = layer(x[order]), layer(x)
    return torch.allclose(moved.sort(0).values, plain.sort(0).values, atol=1e-5)


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
