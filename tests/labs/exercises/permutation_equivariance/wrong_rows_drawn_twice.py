# kind: not an order
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_equivariant, is_invariant


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randint(length, (length,))
        if not is_equivariant(layer, x, order):
            return x, order
    return None
