"""Attention scaling

This lab shows you why attention scores are divided by sqrt(d_k) ([Vaswani et al.,
2017](https://arxiv.org/abs/1706.03762)), and what happens without it.

A score is the dot product of a query and a key. Softmax turns the scores of one query into weights that sum to 1. If
the largest score is far above the others, it gets nearly all the weight. How far scores are apart depends on the
head dimension d_k.

Here queries and keys are random, with ten keys per query and 8 to 4,096 dimensions. Random vectors describe a model at
initialisation, before it has learned anything.
"""

from __future__ import annotations

import functools
from itertools import pairwise

import torch
from torch import Tensor

from attnscope import attend
from attnscope.attention import Temperature
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict

DIMENSIONS = (8, 64, 512, 4096)
KEYS = 10
PRINTED = 0.30
"""The limit of the largest weight, according to the text."""


@functools.cache
def random_scores(dimension: int, draws: int, seed: int) -> Tensor:
    """Return scores (draws, keys) of standard normal queries and keys; each draw has a new query and new keys."""
    generator = torch.Generator().manual_seed(10_000 * seed + dimension)
    chunks = []
    for _ in range(draws // 100):  # in one tensor, 4,096 dimensions would take 650 MB
        query = torch.randn(100, 1, dimension, generator=generator)
        keys = torch.randn(100, KEYS, dimension, generator=generator)
        chunks.append((query @ keys.mT).squeeze(1))
    return torch.cat(chunks).double()


def scores_by_dimension(lab: Lab) -> dict[int, Tensor]:
    """Return the scores of this run by dimension."""
    return {
        dimension: random_scores(dimension, lab.choose(small=4_000, full=40_000), lab.seed) for dimension in DIMENSIONS
    }


def variance_of_the_scores(lab: Lab) -> None:
    """A score is a sum of d_k products. Each product of two standard normal numbers has mean 0 and variance 1, and
    variances of independent numbers add up. So a score has mean 0, variance d_k and standard deviation sqrt(d_k).
    Divided by sqrt(d_k), its standard deviation is 1 in every dimension.
    """
    rows = []
    for dimension, scores in scores_by_dimension(lab).items():
        root = dimension**0.5
        mean, spread = scores.mean().item(), scores.std().item()
        rows.append((dimension, mean, scores.var().item(), spread, root, spread / root))
    columns = ("d_k", "mean", "variance", "standard deviation", "sqrt(d_k)", "deviation / sqrt(d_k)")
    lab.table("Scores of random queries and keys", columns, rows)

    means = [mean / root for _, mean, _, _, root, _ in rows]
    ratios = [variance / dimension for dimension, _, variance, *_ in rows]
    scaled = [row[-1] for row in rows]
    lab.decide(
        "38",
        Verdict.HOLDS,
        f"From 8 to 4,096 dimensions the variance is {min(ratios):.3f} to {max(ratios):.3f} times d_k, and all means "
        f"are within {max(map(abs, means)):.3f} standard deviations of 0.",
        Measurement(name="smallest variance / d_k", value=min(ratios), low=0.92, high=1.08),
        Measurement(name="largest variance / d_k", value=max(ratios), low=0.92, high=1.08),
        Measurement(name="largest mean, in standard deviations", value=max(map(abs, means)), high=0.05),
    )
    lab.decide(
        "1a",
        Verdict.HOLDS,
        f"The standard deviation grows from {rows[0][3]:.2f} to {rows[-1][3]:.1f}; divided by sqrt(d_k) it stays "
        f"between {min(scaled):.3f} and {max(scaled):.3f}.",
        Measurement(name="standard deviation at 4,096 / at 8", value=rows[-1][3] / rows[0][3], low=21.5, high=23.8),
        Measurement(name="smallest deviation after scaling", value=min(scaled), low=0.96, high=1.04),
        Measurement(name="largest deviation after scaling", value=max(scaled), low=0.96, high=1.04),
    )


def softmax_saturation(lab: Lab) -> None:
    """If scores are far apart, softmax gives nearly all the weight to the largest one. The derivatives of softmax, w (1
    - w) for a weight w, are then all close to 0, and the gradients vanish.

    One text prints a single draw, whose largest weight at 512 dimensions is 1.0000. A single draw is an anecdote: it
    depends on the gap between the best key and the second best. So the lab draws thousands.
    """
    rows, means = [], {"scaled": [], "not scaled": []}
    for dimension, scores in scores_by_dimension(lab).items():
        for name, divisor in zip(means, (dimension**0.5, 1.0), strict=True):
            weights = (scores / divisor).softmax(dim=-1)
            largest, derivatives = weights.amax(dim=-1), (weights * (1 - weights)).sum(dim=-1)
            under = (largest < 0.9).double().mean().item()
            means[name].append(largest.mean().item())
            rows.append((dimension, name, means[name][-1], largest.median().item(), under, derivatives.median().item()))
    columns = ("d_k", "scores", "largest weight, mean", "median", "share under 0.9", "sum of derivatives, median")
    lab.table("The largest of ten weights", columns, rows)
    drawing = lines(
        DIMENSIONS,
        means,
        xlabel="d_k",
        ylabel="largest of ten weights, mean",
        title="Without scaling, one key gets almost all the weight",
        log_x=True,
        reference_lines={"uniform: 0.1": 1 / KEYS},
    )
    lab.figure("largest_weight", drawing, "The mean of the largest weight: flat with the scaling, near 1 without it.")

    median, under, derivative = next(row[3:] for row in rows if row[:2] == (512, "not scaled"))
    kept = next(row[-1] for row in rows if row[:2] == (512, "scaled"))
    lab.decide(
        "1b",
        Verdict.HOLDS_WHEN,
        f"At d_k = 512 the median of the largest weight is {median:.4f}, and the derivatives are "
        f"{derivative / kept:.1e} of those with the scaling. But in {under:.0%} of the draws the largest weight is "
        "below 0.9.",
        Measurement(name="median of the largest weight at 512", value=median, low=0.999),
        Measurement(name="derivatives at 512, without / with the scaling", value=derivative / kept, high=0.01),
        Measurement(name="share of draws under 0.9 at 512", value=under, low=0.10, high=0.20),
        condition="it is about a typical draw: about one in seven leaves more than a tenth to the other keys",
    )


def largest_weights_of_one_draw(dimension: int, generator: torch.Generator) -> tuple[float, float]:
    """Return the largest weight of one draw, without and with the scaling, as the program of the text computes it."""
    query, keys = (torch.randn(count, dimension, generator=generator) for count in (1, KEYS))
    scores = query @ keys.T
    return scores.softmax(dim=-1).max().item(), (scores / dimension**0.5).softmax(dim=-1).max().item()


def largest_weight_with_the_scaling(lab: Lab) -> None:
    """One text says that with the scaling, the largest of ten weights stays under 0.30 in every dimension. Its three
    printed draws do: 0.22, 0.27 and 0.24. But scaled scores are close to ten standard normal numbers, whatever d_k is.
    The largest of ten such numbers is about 1.5 on average, and 0.30 is then a typical weight.

    The program in the text is short and states its seed, so the lab runs it too.
    """
    over, curves = {}, {}
    shares = [percent / 100 for percent in range(101)]
    for dimension, scores in scores_by_dimension(lab).items():
        largest = (scores / dimension**0.5).softmax(dim=-1).amax(dim=-1)
        over[dimension] = (largest > PRINTED).double().mean().item()
        curves[f"d_k = {dimension:,}"] = largest.quantile(torch.tensor(shares).double()).tolist()
    rows = [
        (dimension, over[dimension], *curve[5:100:45]) for dimension, curve in zip(over, curves.values(), strict=True)
    ]
    columns = ("d_k", "share above 0.30", "5% are under", "50% are under", "95% are under")
    lab.table("The largest of ten weights, scaled", columns, rows)

    generator = torch.Generator().manual_seed(42)
    printed = {8: (0.5765, 0.2213), 64: (0.9998, 0.2697), 512: (1.0000, 0.2381)}
    drawn = [
        (dimension, *printed[dimension], *largest_weights_of_one_draw(dimension, generator)) for dimension in printed
    ]
    columns = ("d_k", "printed: not scaled", "printed: scaled", "run: not scaled", "run: scaled")
    note = "One draw each with seed 42. The program does not reproduce the printed values here."
    lab.table("The largest weight in the program of the text", columns, drawn, note=note)

    names = [f"{share:.0%}" for share in over.values()]
    drawing = lines(
        [100 * share for share in shares],
        curves,
        xlabel="draws, sorted (%)",
        ylabel="largest of ten weights",
        title="Scaled: the largest weight exceeds 0.30 in almost half of the draws",
        reference_lines={"printed limit: 0.30": PRINTED},
    )
    lab.figure("over_the_limit", drawing, "All draws, sorted. The four dimensions give almost the same curve.")
    lab.decide(
        "1c",
        Verdict.DOES_NOT_HOLD,
        f"The largest weight is above 0.30 in {', '.join(names[:-1])} and {names[-1]} of the draws at d_k = 8, 64, 512 "
        "and 4,096: 0.30 is close to the median, not a limit.",
        *(
            Measurement(name=f"share of draws above 0.30 at {dimension:,}", value=share, low=0.38, high=0.53)
            for dimension, share in over.items()
        ),
    )


def scaling_as_a_temperature(lab: Lab) -> None:
    """Softmax at temperature T divides all scores by T. So scaling by 1/sqrt(d_k) is a softmax at temperature
    sqrt(d_k). The lab compares `attend` with its default scale and `attend` with scale 1 and that temperature. As a
    negative control, it also uses the temperature d_k.

    A higher temperature makes the weights more even. Entropy measures this: it is 0 if one key has all the weight, and
    log(n) if all n keys have the same weight.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    dimension, root = 128, 128**0.5
    query, key, value = (torch.randn(1, 100, dimension, generator=generator, dtype=torch.float64) for _ in range(3))
    usual = attend(query, key, value)
    difference = {
        temperature: (attend(query, key, value, scale=1.0, score_mod=Temperature(temperature)) - usual)
        .abs()
        .max()
        .item()
        for temperature in (root, float(dimension))
    }
    rows = []
    for temperature in (1.0, 3.0, root, 30.0, 128.0):
        weights = (query @ key.mT / temperature).softmax(dim=-1)
        entropy = torch.special.entr(weights).sum(dim=-1).mean().item()
        rows.append((temperature, weights.amax(dim=-1).mean().item(), entropy))
    columns = ("temperature", "largest of 100 weights, mean", "entropy, mean")
    note = "11.31 is sqrt(128). The entropy of 100 equal weights is 4.605."
    lab.table("Weights over 100 keys, d_k = 128", columns, rows, note=note)
    rises = min(later[2] - earlier[2] for earlier, later in pairwise(rows))
    lab.decide(
        "2",
        Verdict.HOLDS,
        f"The outputs differ by {difference[root]:.1g}; at temperature d_k they differ by "
        f"{difference[float(dimension)]:.1f}. The entropy rises with the temperature.",
        Measurement(name="largest difference at sqrt(d_k)", value=difference[root], high=1e-12),
        Measurement(name="largest difference at d_k", value=difference[float(dimension)], low=0.1),
        Measurement(name="smallest rise of the entropy from one temperature to the next", value=rises, low=0.01),
    )


def limits_of_the_scaling(lab: Lab) -> None:
    """The scaling assumes that query and key are independent. If they point in the same direction, all products are
    positive, and scores grow like d_k instead of sqrt(d_k). A query that meets an equal key has a score of sqrt(d_k)
    even after the scaling. The scaling determines where training starts; it does not keep a trained model from sharp
    weights.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    rows = []
    for dimension in DIMENSIONS:
        query = torch.randn(200, dimension, generator=generator)
        keys = torch.cat([query[:, None], torch.randn(200, KEYS - 1, dimension, generator=generator)], dim=1)
        scores = (keys @ query[:, :, None]).squeeze(-1) / dimension**0.5
        own = scores.softmax(dim=-1)[:, 0]
        rows.append((dimension, scores[:, 0].mean().item(), scores[:, 1:].std().item(), own.mean().item()))
    columns = (
        "d_k",
        "score of the equal key, mean",
        "standard deviation of the others",
        "weight of the equal key, mean",
    )
    lab.table("One of ten keys equals the query, scaled", columns, rows)


PARTS = (
    variance_of_the_scores,
    softmax_saturation,
    largest_weight_with_the_scaling,
    scaling_as_a_temperature,
    limits_of_the_scaling,
)
