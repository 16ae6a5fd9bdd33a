"""Row by row, with the order undone instead of done."""

import itertools

import torch


def close(one, other):
    return (one - other).norm().item() <= 1e-4 * (1 + other.norm().item()) / 10


def is_equivariant(layer, x, order):
    moved, plain = layer(x[order]), layer(x)
    back = torch.empty_like(moved)
    for place, came_from in enumerate(order.tolist()):
        back[came_from] = moved[place]
    return all(close(back[row], plain[row]) for row in range(len(x)))


def is_invariant(layer, x, order):
    return close(layer(x.index_select(0, order)), layer(x))


def counterexample(layer, length, width):
    torch.manual_seed(3)
    x = torch.rand(length, width)
    for numbers in itertools.islice(itertools.permutations(range(length)), 1, None):
        order = torch.tensor(numbers)
        if not is_equivariant(layer, x, order):
            return [x, order]
    return None
