# kind: a counterexample where there is none
import torch

from tests.labs.exercises.permutation_equivariance.right_1 import is_equivariant, is_invariant


def counterexample(layer, length, width):
    return torch.randn(length, width), torch.arange(length).roll(1)
