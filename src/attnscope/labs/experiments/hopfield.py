"""Is attention a memory, and how much fits into it?

A Hopfield network stores patterns and completes a damaged one. That of 1982 keeps one weight for each pair of its
neurons. The modern one keeps the patterns themselves, and a step of it is written exactly as attention is: the damaged
pattern is the query, the stored patterns are keys and values. Where attention divides the scores by the root of d, the
network multiplies them by a number of its own, called beta.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnscope import AttentionMatrix, attend
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.variants.hopfield import energy, retrieve

DAMAGED = 8
"""One sign of so many is turned before the network is asked to complete a pattern."""
RECOVERED = 0.95
"""The overlap with the stored pattern, 1 for all of it, from which on it counts as recovered."""


def one_step_is_one_row(lab: Lab) -> None:
    """A modern Hopfield network has an energy, low near the stored patterns, and an update that lowers it: replace the
    state by the average of the patterns, weighted by a softmax of beta times their products with the state. Below, that
    update is compared with a row of attention, with its scale of 1/sqrt(d) as beta, and with one step of gradient
    descent on the energy, whose slope is found by automatic differentiation.

    Attention in a transformer averages values that are not its keys. If the values are a linear map of the keys, that
    map can wait until after the update. With values of their own, the weights are still those of the network, but what
    comes out is no linear function of the network's next state: the best one leaves a part unexplained.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    states, stored, dimension = 256, 64, 16
    beta = 1 / math.sqrt(dimension)
    state = torch.randn(states, dimension, generator=generator, dtype=torch.float64)
    keys = torch.randn(stored, dimension, generator=generator, dtype=torch.float64)
    values = torch.randn(stored, dimension, generator=generator, dtype=torch.float64)
    linear_map = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)

    update = retrieve(state, keys, beta=beta)
    weights = AttentionMatrix(state[None], keys[None]).to_dense()[0]
    moving = state.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(moving, keys, beta=beta, backend="reference").sum(), moving)
    own = attend(state, keys, values)
    explained = update @ torch.linalg.lstsq(update, own).solution

    from_row = float((update - weights @ keys).abs().max())
    from_descent = float((update - (state - slope)).abs().max())
    from_map = float((attend(state, keys, keys @ linear_map) - update @ linear_map).abs().max())
    unexplained = float((own - explained).square().sum() / own.square().sum())
    path = [state]
    for _ in range(10):
        path.append(retrieve(path[-1], keys, beta=beta))
    steps = torch.stack([energy(place, keys, beta=beta) for place in path])
    rise = float(steps.diff(dim=0).max())
    lab.table(
        "One update of the network beside attention",
        ("compared with", "difference"),
        [
            ("a row of attention, values = keys", from_row),
            ("one step of gradient descent on the energy", from_descent),
            ("attention, values = keys times a matrix", from_map),
            ("attention, values of their own: share unexplained", unexplained),
            ("largest rise of the energy in ten steps", rise),
        ],
    )
    lab.decide(
        "24a",
        Verdict.HOLDS_WHEN,
        f"Update and row differ by {from_row:.0e}, and ten steps never raised the energy. With values of their own the "
        f"weights are the same, but {unexplained:.0%} of the output is no linear function of the network's next state.",
        Measurement(name="update against row", value=from_row, high=1e-12),
        Measurement(name="update against descent", value=from_descent, high=1e-12),
        Measurement(name="with values = keys times a matrix", value=from_map, high=1e-11),
        Measurement(name="largest rise of the energy", value=rise, high=1e-12),
        Measurement(name="unexplained with values of their own", value=unexplained, low=0.03),
        condition="the values are the keys, or a linear map of them",
    )


def random_signs(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Patterns of +1 and -1."""
    return torch.randint(2, (count, dimension), generator=generator).float() * 2 - 1


def damage(patterns: Tensor, generator: torch.Generator) -> Tensor:
    """The same with one sign in eight turned, at random places of each."""
    turned = torch.rand(patterns.shape, generator=generator).argsort(-1) < patterns.shape[-1] // DAMAGED
    return torch.where(turned, -patterns, patterns)


def share_recovered(recalled: Tensor, patterns: Tensor) -> float:
    """How many of the recalled states overlap with their patterns enough."""
    return float(((recalled * patterns).mean(-1) >= RECOVERED).float().mean())


def capacity(share: Callable[[int], float], *, first: int, growth: float) -> float:
    """How many patterns can be stored until only half are recovered: grown step by step, then between two steps."""
    count, before, now = first, first, 1.0
    while True:
        previous, now = now, share(count)
        if now < 0.5:
            return before + (count - before) * (previous - 0.5) / max(previous - now, 1e-9)
        before, count = count, max(count + 1, round(count * growth))


def network_of_1982(count: int, dimension: int, generator: torch.Generator) -> float:
    """The share that Hopfield's network recovers; its weights are outer products, and its neurons turn one by one."""
    patterns = random_signs(count, dimension, generator)
    weights = (patterns.T @ patterns / dimension).fill_diagonal_(0)
    asked = patterns[:64]
    state = damage(asked, generator)
    for _ in range(20):
        before = state.clone()
        for neuron in torch.randperm(dimension, generator=generator).tolist():
            state[:, neuron] = torch.where(state @ weights[neuron] >= 0, 1.0, -1.0)
        if torch.equal(before, state):
            break
    return share_recovered(state, asked)


def modern_network(count: int, dimension: int, beta: float, generator: torch.Generator) -> float:
    """The share that a modern network recovers in three steps, of up to 256 patterns that are asked for."""
    patterns = random_signs(count, dimension, generator)
    asked = patterns[:256]
    return share_recovered(retrieve(damage(asked, generator), patterns, beta=beta, steps=3), asked)


def decide_capacity(lab: Lab, held: dict[str, dict[int, float]]) -> None:
    """The verdict on capacity: bits that a further dimension adds."""

    def bits(name: str, first: int, last: int) -> float:
        return math.log2(held[name][last] / held[name][first]) / (last - first)

    early, late = bits("beta = 1", 16, 24), bits("beta = 1", 24, 32)
    soft_early, soft_late = bits("beta = 1 / root of d", 32, 64), bits("beta = 1 / root of d", 128, 256)
    old = held["network of 1982"]
    lab.decide(
        "24b",
        Verdict.HOLDS_WHEN,
        f"With beta = 1 a further dimension multiplies the capacity by {2**early:.2f} from 16 on and by {2**late:.2f} "
        f"from 24 on. With the beta of attention that is {2**soft_early:.3f} from 32 on and only {2**soft_late:.3f} "
        f"from 128 on, which is less than exponential. The network of 1982 holds {old[256] / 256:.2f} d.",
        Measurement(name="bits a dimension, beta = 1, 16 to 24", value=early, low=0.3, high=0.7),
        Measurement(name="bits a dimension, beta = 1, 24 to 32", value=late, low=0.3, high=0.7),
        Measurement(name="bits a dimension, beta = 1/sqrt(d), 32 to 64", value=soft_early, low=0.06, high=0.13),
        Measurement(name="bits a dimension, beta = 1/sqrt(d), 128 to 256", value=soft_late, low=0.02, high=0.055),
        Measurement(name="patterns / d of 1982 at 256", value=old[256] / 256, low=0.13, high=0.2),
        Measurement(name="patterns of 1982, 256 against 128", value=old[256] / old[128], low=1.5, high=2.6),
        condition="beta stays the same as d grows; with attention's 1/sqrt(d) it grows like the exponential of a root",
    )


def how_much_it_holds(lab: Lab) -> None:
    """Patterns of random signs are stored, then a pattern is asked for with one sign in eight turned. We count how many
    can be stored until only half of them are found again.

    The network of 1982 holds a fixed number for each of its d neurons. The famous 0.14 is the limit of large networks;
    small ones collapse gradually and so hold a little more.

    For the modern network everything hangs on beta. Scores of different patterns differ by about d. With beta = 1 the
    softmax tells them apart ever better as d grows, and each further dimension multiplies what can be stored: that is
    exponential growth. Attention has beta = 1/sqrt(d), under which the scores differ by about the root of d: from 64
    dimensions on it, too, holds far more than the network of 1982, but each further dimension multiplies by less than
    the one before. (It is measured from 32 on: below, two or three patterns are too many already.)
    """
    generator = torch.Generator().manual_seed(lab.seed)
    sharp, soft = lab.choose(small=(16, 24, 32), full=(16, 24, 32, 40)), (32, 64, 128, 256)
    old = lab.choose(small=(64, 128, 256), full=(64, 128, 256, 512))
    held: dict[str, dict[int, float]] = {"network of 1982": {}, "beta = 1 / root of d": {}, "beta = 1": {}}
    for dimension in old:
        lab.step(f"the network of 1982 with {dimension} neurons")
        held["network of 1982"][dimension] = capacity(
            lambda count, dimension=dimension: sum(network_of_1982(count, dimension, generator) for _ in range(3)) / 3,
            first=dimension // 16,
            growth=1.12,
        )
    for name, dimensions, power in (("beta = 1 / root of d", soft, -0.5), ("beta = 1", sharp, 0.0)):
        for dimension in dimensions:
            lab.step(f"the modern network of {dimension} dimensions, {name}")
            held[name][dimension] = capacity(
                lambda count, dimension=dimension, power=power: modern_network(
                    count, dimension, dimension**power, generator
                ),
                first=2,
                growth=2**0.25,
            )
    every = sorted({*sharp, *soft, *old})
    curves = {name: [found.get(dimension, math.nan) for dimension in every] for name, found in held.items()}
    lab.table(
        "Patterns stored until half are recovered",
        ("d", *held),
        [
            (dimension, *("" if math.isnan(curve[place]) else curve[place] for curve in curves.values()))
            for place, dimension in enumerate(every)
        ],
    )
    decide_capacity(lab, held)
    lab.figure(
        "capacity",
        lines(
            every,
            curves,
            xlabel="dimension d",
            ylabel="patterns",
            log_x=True,
            log_y=True,
            title="With a fixed beta capacity explodes; attention's own beta tames it",
        ),
        "Patterns of random signs that can be stored until half of those asked for are recovered, with one sign in "
        f"eight damaged. With beta = 1 it was measured up to d = {sharp[-1]}, where there is no end to be seen.",
    )


PARTS = (one_step_is_one_row, how_much_it_holds)
