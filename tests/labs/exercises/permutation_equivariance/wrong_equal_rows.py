# kind: a counterexample is missed
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_equivariant, is_invariant


def counterexample(layer, length, width):
    x = torch.ones(length, width)
    for _ in range(100):
        order = torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
