"""Permutation matrices, and every exchange of two neighbours or of any pair."""

from itertools import combinations

import torch


def same(one, other):
    scale = max(one.abs().max().item(), 1.0)
    return bool((one - other).abs().max() < 2e-5 * scale)


def matrix(order, like):
    return torch.eye(len(order), dtype=like.dtype)[order]


def is_equivariant(layer, x, order):
    p = matrix(order, x)
    return same(layer(p @ x), p @ layer(x))


def is_invariant(layer, x, order):
    return same(layer(matrix(order, x) @ x), layer(x))


def counterexample(layer, length, width):
    x = torch.arange(length * width, dtype=torch.float64).reshape(length, width).sin()
    for one, other in combinations(range(length), 2):
        order = torch.arange(length)
        order[[one, other]] = order[[other, one]]
        if not is_equivariant(layer, x, order):
            return x, order
    return None
