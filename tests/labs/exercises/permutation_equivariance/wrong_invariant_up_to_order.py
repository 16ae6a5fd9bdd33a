# kind: equivariance taken for invariance

from tests.labs.exercises.permutation_equivariance.right_1 import counterexample, is_equivariant


def is_invariant(layer, x, order):
    return is_equivariant(layer, x, order)
