# kind: a counterexample is missed
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_equivariant, is_invariant


def counterexample(layer, length, width):
    x, order = torch.randn(length, width), torch.arange(length).flip(0)
    return None if is_equivariant(layer, x, order) else (x, order)
