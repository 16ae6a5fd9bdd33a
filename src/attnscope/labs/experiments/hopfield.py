"""Attention as a Hopfield network

This lab shows you that an attention row is one update of a modern Hopfield network ([Ramsauer et al.,
2020](https://arxiv.org/abs/2008.02217)), and how many patterns such a memory can store.

A Hopfield network stores patterns and completes a damaged one. The network of [Hopfield,
1982](https://doi.org/10.1073/pnas.79.8.2554) has one parameter per pair of neurons. The modern one stores the patterns
themselves, and its update has the form of attention: the damaged pattern is the query, the stored patterns are keys and
values. Where attention divides scores by sqrt(d), the network multiplies them by its own parameter, beta.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnscope import AttentionMatrix, attend
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.labs.statistics import mean_with_error
from attnscope.variants.hopfield import energy, retrieve

FLIPPED = 8
"""One sign in this many is flipped before the network completes a pattern."""
RECOVERED = 0.95
"""The smallest overlap with the stored pattern, at most 1, that counts as recovered."""


def one_update_is_one_attention_row(lab: Lab) -> None:
    """A modern Hopfield network has an energy that is low near the stored patterns, and an update that lowers it:
    replace the state by the average of the patterns, weighted by a softmax of beta times their dot products with the
    state. The lab compares this update with a row of attention, with 1/sqrt(d) as beta, and with one step of gradient
    descent on the energy, by automatic differentiation.

    Attention in a transformer averages values that are not its keys. If the values are a linear map of the keys, the
    map can be applied after the update. With independent values, the weights are still those of the network, but the
    output is not a linear function of its next state: the best linear fit leaves a part unexplained.
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
    (gradient,) = torch.autograd.grad(energy(moving, keys, beta=beta, backend="reference").sum(), moving)
    own = attend(state, keys, values)
    explained = update @ torch.linalg.lstsq(update, own).solution

    from_row = float((update - weights @ keys).abs().max())
    from_descent = float((update - (state - gradient)).abs().max())
    from_map = float((attend(state, keys, keys @ linear_map) - update @ linear_map).abs().max())
    unexplained = float((own - explained).square().sum() / own.square().sum())
    path = [state]
    for _ in range(10):
        path.append(retrieve(path[-1], keys, beta=beta))
    steps = torch.stack([energy(place, keys, beta=beta) for place in path])
    rise = max(0.0, float(steps.diff(dim=0).max()))
    lab.table(
        "One update of the network compared with attention",
        ("compared with", "difference"),
        [
            ("a row of attention, values = keys", from_row),
            ("one step of gradient descent on the energy", from_descent),
            ("attention, values = keys times a matrix", from_map),
            ("attention, independent values: share unexplained", unexplained),
            ("largest increase of the energy in ten steps", rise),
        ],
    )
    lab.decide(
        "24a",
        Verdict.HOLDS_WHEN,
        f"Update and row differ by {from_row:.0e}, and ten steps never increase the energy. With independent values, "
        f"the weights are the same, but {unexplained:.0%} of the output is not a linear function of the next state.",
        Measurement(name="update compared with attention row", value=from_row, high=1e-12),
        Measurement(name="update compared with gradient descent", value=from_descent, high=1e-12),
        Measurement(name="with values = keys times a matrix", value=from_map, high=1e-11),
        Measurement(name="largest increase of the energy", value=rise, high=1e-12),
        Measurement(name="unexplained with independent values", value=unexplained, low=0.03),
        condition="the values are the keys, or a linear map of them",
    )


def random_signs(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return random patterns of +1 and -1."""
    return torch.randint(2, (count, dimension), generator=generator).float() * 2 - 1


def flip_signs(patterns: Tensor, generator: torch.Generator, share: float = 1 / FLIPPED) -> Tensor:
    """Flip a share of the signs at random positions."""
    flipped = torch.rand(patterns.shape, generator=generator).argsort(-1) < int(patterns.shape[-1] * share)
    return torch.where(flipped, -patterns, patterns)


def share_recovered(recalled: Tensor, patterns: Tensor) -> float:
    """Return the share of recalled states that match their patterns."""
    return float(((recalled * patterns).mean(-1) >= RECOVERED).float().mean())


def capacity(share: Callable[[int], float], *, first: int, growth: float) -> float:
    """Return how many patterns can be stored until only half are recovered, by growth and interpolation."""
    count, before, now = first, first, 1.0
    while True:
        previous, now = now, share(count)
        if now < 0.5:
            return before + (count - before) * (previous - 0.5) / max(previous - now, 1e-9)
        before, count = count, max(count + 1, round(count * growth))


def classical_network(count: int, dimension: int, generator: torch.Generator) -> float:
    """Return the share that the network of 1982 recovers, with asynchronous updates."""
    patterns = random_signs(count, dimension, generator)
    weights = (patterns.T @ patterns / dimension).fill_diagonal_(0)
    asked = patterns[:64]
    state = flip_signs(asked, generator)
    for _ in range(20):
        before = state.clone()
        for neuron in torch.randperm(dimension, generator=generator).tolist():
            state[:, neuron] = torch.where(state @ weights[neuron] >= 0, 1.0, -1.0)
        if torch.equal(before, state):
            break
    return share_recovered(state, asked)


def modern_network(
    count: int, dimension: int, beta: float, generator: torch.Generator, flipped: float = 1 / FLIPPED
) -> float:
    """Return the share that a modern network recovers in three steps, of up to 256 patterns."""
    patterns = random_signs(count, dimension, generator)
    asked = patterns[:256]
    return share_recovered(retrieve(flip_signs(asked, generator, flipped), patterns, beta=beta, steps=3), asked)


def decide_capacity(lab: Lab, held: dict[str, dict[int, float]]) -> None:
    """Decide the claim about capacity, from the bits that each dimension adds."""

    def bits(name: str, first: int, last: int) -> float:
        return math.log2(held[name][last] / held[name][first]) / (last - first)

    early, late = bits("beta = 1", 16, 24), bits("beta = 1", 24, 32)
    soft_early, soft_late = bits("beta = 1/sqrt(d)", 32, 64), bits("beta = 1/sqrt(d)", 128, 256)
    old = held["network of 1982"]
    lab.decide(
        "24b",
        Verdict.HOLDS_WHEN,
        f"With beta = 1, each dimension multiplies the capacity by {2**early:.2f} from 16 on and by {2**late:.2f} "
        f"from 24 on. With the beta of attention it is {2**soft_early:.3f} from 32 on and {2**soft_late:.3f} from 128 "
        f"on, which is less than exponential. The network of 1982 stores {old[256] / 256:.2f} d patterns.",
        Measurement(name="bits per dimension, beta = 1, 16 to 24", value=early, low=0.3, high=0.7),
        Measurement(name="bits per dimension, beta = 1, 24 to 32", value=late, low=0.3, high=0.7),
        Measurement(name="bits per dimension, beta = 1/sqrt(d), 32 to 64", value=soft_early, low=0.06, high=0.13),
        Measurement(name="bits per dimension, beta = 1/sqrt(d), 128 to 256", value=soft_late, low=0.02, high=0.055),
        Measurement(name="network of 1982: patterns / d at 256", value=old[256] / 256, low=0.13, high=0.2),
        Measurement(name="network of 1982: patterns at 256 / at 128", value=old[256] / old[128], low=1.5, high=2.6),
        condition="beta is constant as d grows; with 1/sqrt(d), as in attention, growth is slower than exponential",
    )


def storage_capacity(lab: Lab) -> None:
    """Random sign patterns are stored, then the network completes a pattern with one sign in eight flipped. The lab
    measures how many patterns can be stored until only half of them are recovered.

    The network of 1982 stores a fixed number per neuron. The well-known 0.14 is the limit of large networks; small ones
    degrade gradually and store a little more.

    For the modern network, everything depends on beta. Scores of different patterns differ by about d. With beta = 1,
    the softmax separates them better as d grows, and each dimension multiplies the capacity: exponential growth.
    Attention has beta = 1/sqrt(d), so scores differ by about sqrt(d). From 64 dimensions on, it also stores far more
    than the network of 1982, but each further dimension multiplies the capacity by less. (It is measured from 32 on;
    below, two or three patterns are already too many.)
    """
    generator = torch.Generator().manual_seed(lab.seed)
    sharp, soft = lab.choose(small=(16, 24, 32), full=(16, 24, 32, 40)), (32, 64, 128, 256)
    old = lab.choose(small=(64, 128, 256), full=(64, 128, 256, 512))
    held: dict[str, dict[int, float]] = {"network of 1982": {}, "beta = 1/sqrt(d)": {}, "beta = 1": {}}
    for dimension in old:
        lab.step(f"network of 1982, {dimension} neurons")
        held["network of 1982"][dimension] = capacity(
            lambda count, dimension=dimension: (
                sum(classical_network(count, dimension, generator) for _ in range(3)) / 3
            ),
            first=dimension // 16,
            growth=1.12,
        )
    for name, dimensions, power in (("beta = 1/sqrt(d)", soft, -0.5), ("beta = 1", sharp, 0.0)):
        for dimension in dimensions:
            lab.step(f"modern network, {dimension} dimensions, {name}")
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
        "Capacity: patterns stored until only half are recovered",
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
            title="Capacity grows exponentially with constant beta, and slower with that of attention",
        ),
        "Random sign patterns that can be stored until only half are recovered, with one sign in eight flipped. With "
        f"beta = 1, measured up to d = {sharp[-1]}.",
    )


def predicted_factor(beta: float, flipped: float) -> float:
    """Return by which factor one more dimension multiplies the capacity, for random sign patterns.

    A damaged pattern has a dot product of (1 - 2 flipped) d with its own pattern. Another pattern has a random one, and
    the mean of its exp(beta x) is cosh(beta)^d. The sum over others equals the own term at this factor per dimension.

    >>> f"{predicted_factor(1.0, 0.0):.2f} {predicted_factor(1.0, 1 / 8):.2f}"
    '1.76 1.37'
    """
    return math.exp(beta * (1 - 2 * flipped)) / math.cosh(beta)


def rate_of_the_growth(lab: Lab) -> None:
    """One text gives a rate: exp(d/2) patterns, a factor of 1.65 per dimension. But the rate depends on beta and on the
    damage. The lab measures three cases and compares them with a short calculation: the softmax recovers a pattern as
    long as its own term is larger than the sum over all others.

    [Ramsauer et al., 2020](https://arxiv.org/abs/2008.02217) prove a lower bound of another form, c^((d-1)/4), where c
    depends on beta and on the length of the patterns. A capacity of 2^(d/2) is known for a related network ([Demircigil
    et al., 2017](https://arxiv.org/abs/1702.01929)).
    """
    cases = {"no damage, beta = 1": (1.0, 0.0, (12, 20)), "no damage, beta = 1/2": (0.5, 0.0, (16, 24))}
    cases["one sign in eight flipped, beta = 1"] = (1.0, 1 / FLIPPED, (16, 24))
    rows, measured = [], []
    for name, (beta, flipped, dimensions) in cases.items():
        factors = []
        for seed in lab.seeds(3):
            generator = torch.Generator().manual_seed(seed)
            first, last = (
                capacity(
                    lambda count, beta=beta, flipped=flipped, dimension=dimension, generator=generator: modern_network(
                        count, dimension, beta, generator, flipped
                    ),
                    first=2,
                    growth=2**0.25,
                )
                for dimension in dimensions
            )
            factors.append((last / first) ** (1 / (dimensions[1] - dimensions[0])))
        mean = mean_with_error(factors)
        measured.append(mean.value)
        rows.append(
            (name, f"{dimensions[0]} to {dimensions[1]}", mean.value, mean.error, predicted_factor(beta, flipped))
        )
    columns = ("case", "d", "factor per dimension", "standard error", "predicted")
    note = f"Three seeds. exp(d/2) would be a factor of {math.exp(0.5):.2f} in every case."
    lab.table("Growth of the capacity", columns, rows, note=note)
    clean, soft, damaged = measured
    lab.decide(
        "24c",
        Verdict.DOES_NOT_HOLD,
        f"There is no single rate: one more dimension multiplies the capacity by {clean:.2f} without damage at beta = "
        f"1, by {soft:.2f} at beta = 1/2, and by {damaged:.2f} if one sign in eight is flipped; exp(1/2) is 1.65.",
        Measurement(name="factor, no damage, beta = 1", value=clean, low=1.71, high=1.82),
        Measurement(name="factor, no damage, beta = 1/2", value=soft, low=1.4, high=1.5),
        Measurement(name="factor, one in eight flipped, beta = 1", value=damaged, low=1.34, high=1.44),
    )


PARTS = (one_update_is_one_attention_row, storage_capacity, rate_of_the_growth)
