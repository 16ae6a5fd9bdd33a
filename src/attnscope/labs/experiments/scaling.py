"""Why are scores divided by the root of their dimension?

A score is the dot product of a query and a key: how well what is looked for matches what is offered. Softmax turns the
scores of one query into weights that sum to 1, and gives nearly everything to the largest score if the others are far
below it. How far apart scores are depends on how many numbers were multiplied and added up to make them.

Here queries and keys are drawn at random, ten keys to a query, in 8 to 4,096 dimensions. What holds for random vectors
is where a model starts from before it has learned anything.
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
"""Under which the largest weight is said to stay."""


@functools.cache
def random_scores(dimension: int, draws: int, seed: int) -> Tensor:
    """(draws, keys): in each draw a new query meets new keys, all of them standard normal."""
    generator = torch.Generator().manual_seed(10_000 * seed + dimension)
    blocks = []
    for _ in range(draws // 100):  # all at once, 4,096 dimensions would take 650 MB
        query = torch.randn(100, 1, dimension, generator=generator)
        keys = torch.randn(100, KEYS, dimension, generator=generator)
        blocks.append((query @ keys.mT).squeeze(1))
    return torch.cat(blocks).double()


def scores_of_every_dimension(lab: Lab) -> dict[int, Tensor]:
    """The scores of this run by their dimension."""
    return {
        dimension: random_scores(dimension, lab.choose(small=4_000, full=40_000), lab.seed) for dimension in DIMENSIONS
    }


def how_far_scores_spread(lab: Lab) -> None:
    """A score is a sum of d_k products. Each product of two standard normal numbers has mean 0 and variance 1, and
    variances of independent numbers add up: so a score should have mean 0 and variance d_k, and its standard deviation
    should grow like the root of d_k. Divided by that root, it should be 1 in every dimension.
    """
    rows = []
    for dimension, scores in scores_of_every_dimension(lab).items():
        root = dimension**0.5
        mean, spread = scores.mean().item(), scores.std().item()
        rows.append((dimension, mean, scores.var().item(), spread, root, spread / root))
    columns = ("d_k", "mean", "variance", "standard deviation", "root of d_k", "deviation / root")
    lab.table("Scores of random queries and keys", columns, rows)

    means = [mean / root for _, mean, _, _, root, _ in rows]
    ratios = [variance / dimension for dimension, _, variance, *_ in rows]
    scaled = [row[-1] for row in rows]
    lab.decide(
        "38",
        Verdict.HOLDS,
        f"From 8 to 4,096 dimensions the variance is {min(ratios):.3f} to {max(ratios):.3f} times d_k, and no mean is "
        f"farther from 0 than {max(map(abs, means)):.3f} standard deviations.",
        Measurement(name="smallest variance / d_k", value=min(ratios), low=0.92, high=1.08),
        Measurement(name="largest variance / d_k", value=max(ratios), low=0.92, high=1.08),
        Measurement(name="largest mean, in standard deviations", value=max(map(abs, means)), high=0.05),
    )
    lab.decide(
        "1a",
        Verdict.HOLDS,
        f"The standard deviation grows from {rows[0][3]:.2f} to {rows[-1][3]:.1f}; divided by the root of d_k it stays "
        f"between {min(scaled):.3f} and {max(scaled):.3f}.",
        Measurement(name="standard deviation at 4,096 / at 8", value=rows[-1][3] / rows[0][3], low=21.5, high=23.8),
        Measurement(name="smallest deviation after the division", value=min(scaled), low=0.96, high=1.04),
        Measurement(name="largest deviation after the division", value=max(scaled), low=0.96, high=1.04),
    )


def what_softmax_makes_of_it(lab: Lab) -> None:
    """Of scores that are far apart softmax hears only the largest. And where one weight is 1 and the others are 0,
    small changes of the scores change nothing: the slopes of softmax, w (1 - w) for a weight w, are all near 0, and
    there is nothing to learn from.

    A text prints one draw, whose largest weight at 512 dimensions is 1.0000. But one draw is an anecdote: it depends
    on how far the best key happens to lie before the second best. So here are thousands of them.
    """
    rows, means = [], {"divided by the root of d_k": [], "not divided": []}
    for dimension, scores in scores_of_every_dimension(lab).items():
        for name, divisor in zip(means, (dimension**0.5, 1.0), strict=True):
            weights = (scores / divisor).softmax(dim=-1)
            largest, slopes = weights.amax(dim=-1), (weights * (1 - weights)).sum(dim=-1)
            under = (largest < 0.9).double().mean().item()
            means[name].append(largest.mean().item())
            rows.append((dimension, name, means[name][-1], largest.median().item(), under, slopes.median().item()))
    columns = ("d_k", "scores", "largest weight, mean", "median", "share under 0.9", "sum of slopes, median")
    lab.table("The largest of ten weights", columns, rows)
    drawing = lines(
        DIMENSIONS,
        means,
        xlabel="d_k",
        ylabel="largest of ten weights, mean",
        title="Without the division one key takes almost everything",
        log_x=True,
        reference_lines={"all ten alike: 0.1": 1 / KEYS},
    )
    lab.figure("largest_weight", drawing, "The mean of the largest weight: flat with the division, near 1 without it.")

    median, under, slope = next(row[3:] for row in rows if row[:2] == (512, "not divided"))
    kept = next(row[-1] for row in rows if row[:2] == (512, "divided by the root of d_k"))
    lab.decide(
        "1b",
        Verdict.HOLDS_WHEN,
        f"At d_k = 512 the median of the largest weight is {median:.4f}, and the slopes are {slope / kept:.1e} of what "
        f"they are with the division; but in {under:.0%} of the draws the strongest key gets less than 0.9.",
        Measurement(name="median of the largest weight at 512", value=median, low=0.999),
        Measurement(name="slopes at 512, without / with the division", value=slope / kept, high=0.01),
        Measurement(name="share of draws under 0.9 at 512", value=under, low=0.10, high=0.20),
        condition="a typical draw is meant: about one in seven leaves more than a tenth to the other keys",
    )


def printed_program(dimension: int, generator: torch.Generator) -> tuple[float, float]:
    """The largest weight of one draw, as a text prints it: without and with the division."""
    query, keys = (torch.randn(count, dimension, generator=generator) for count in (1, KEYS))
    scores = query @ keys.T
    return scores.softmax(dim=-1).max().item(), (scores / dimension**0.5).softmax(dim=-1).max().item()


def whether_the_largest_weight_stays_under_a_limit(lab: Lab) -> None:
    """With the division the largest of ten weights is said to stay under 0.30 in every dimension. Three printed draws
    do so: 0.22, 0.27 and 0.24. But after the division scores are much like ten standard normal numbers, whatever d_k
    is, and the largest of ten such numbers is about 1.5 on the average: 0.30 is in the middle of what comes out.

    The program behind the printed draws is short and names its seed, so it is run here as well.
    """
    over, curves = {}, {}
    shares = [percent / 100 for percent in range(101)]
    for dimension, scores in scores_of_every_dimension(lab).items():
        largest = (scores / dimension**0.5).softmax(dim=-1).amax(dim=-1)
        over[dimension] = (largest > PRINTED).double().mean().item()
        curves[f"d_k = {dimension:,}"] = largest.quantile(torch.tensor(shares).double()).tolist()
    rows = [
        (dimension, over[dimension], *curve[5:100:45]) for dimension, curve in zip(over, curves.values(), strict=True)
    ]
    columns = ("d_k", "share above 0.30", "5% are under", "50% are under", "95% are under")
    lab.table("The largest of ten weights, with the division", columns, rows)

    generator = torch.Generator().manual_seed(42)
    printed = {8: (0.5765, 0.2213), 64: (0.9998, 0.2697), 512: (1.0000, 0.2381)}
    drawn = [(dimension, *printed[dimension], *printed_program(dimension, generator)) for dimension in printed]
    columns = ("d_k", "printed: not divided", "printed: divided", "run: not divided", "run: divided")
    note = "One draw each with seed 42. What is printed is not what this program gives here."
    lab.table("The largest weight in the printed program", columns, drawn, note=note)

    names = [f"{share:.0%}" for share in over.values()]
    drawing = lines(
        [100 * share for share in shares],
        curves,
        xlabel="draws, from the smallest to the largest (%)",
        ylabel="largest of ten weights",
        title="With the division, the largest weight passes 0.30 in almost half of the draws",
        reference_lines={"printed limit: 0.30": PRINTED},
    )
    lab.figure("over_the_limit", drawing, "Every draw at its rank. The four dimensions give almost the same curve.")
    lab.decide(
        "1c",
        Verdict.DOES_NOT_HOLD,
        f"The largest weight is above 0.30 in {', '.join(names[:-1])} and {names[-1]} of the draws at d_k = 8, 64, 512 "
        "and 4,096: 0.30 is close to the median, and no limit.",
        *(
            Measurement(name=f"share of draws above 0.30 at {dimension:,}", value=share, low=0.38, high=0.53)
            for dimension, share in over.items()
        ),
    )


def that_the_division_is_a_temperature(lab: Lab) -> None:
    """Softmax at temperature T divides all scores by T before it takes the exponential. So nothing else can happen when
    T is the root of d_k: the two are one formula under two names. What `attend` computes with its usual scale is
    compared with what it computes with scale 1 and a temperature; and, so that the comparison can fail, with the
    temperature d_k.

    A higher temperature spreads the weights more evenly. Entropy says how evenly: 0 if one key has all the weight, and
    the logarithm of the number of keys if all have the same.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    dimension, root = 128, 128**0.5
    query, key, value = (torch.randn(1, 100, dimension, generator=generator, dtype=torch.float64) for _ in range(3))
    usual = attend(query, key, value)
    apart = {
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
    note = "11.31 is the root of 128. Of 100 even weights the entropy is 4.605."
    lab.table("Weights over 100 keys, d_k = 128", columns, rows, note=note)
    rises = min(later[2] - earlier[2] for earlier, later in pairwise(rows))
    lab.decide(
        "2",
        Verdict.HOLDS,
        f"The outputs differ by {apart[root]:.1g}; at temperature d_k they would differ by "
        f"{apart[float(dimension)]:.1f}. And a higher temperature is softer at every step.",
        Measurement(name="largest difference at the root of d_k", value=apart[root], high=1e-12),
        Measurement(name="largest difference at d_k", value=apart[float(dimension)], low=0.1),
        Measurement(name="smallest rise of the entropy from one temperature to the next", value=rises, low=0.01),
    )


def what_the_division_takes_for_granted(lab: Lab) -> None:
    """That a scaled score is about 1 needs a query and a key that have nothing to do with each other. Where they point
    the same way, every product is positive, and scores grow like d_k, not like its root: a query that meets a key equal
    to itself gets the score root of d_k even after the division. The division sets where training starts; it does not
    keep a trained model from sharp weights.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    rows = []
    for dimension in DIMENSIONS:
        query = torch.randn(200, dimension, generator=generator)
        keys = torch.cat([query[:, None], torch.randn(200, KEYS - 1, dimension, generator=generator)], dim=1)
        scores = (keys @ query[:, :, None]).squeeze(-1) / dimension**0.5
        own = scores.softmax(dim=-1)[:, 0]
        rows.append((dimension, scores[:, 0].mean().item(), scores[:, 1:].std().item(), own.mean().item()))
    columns = ("d_k", "score of the equal key, mean", "deviation of the others", "weight of the equal key, mean")
    lab.table("One of ten keys equals the query, with the division", columns, rows)


PARTS = (
    how_far_scores_spread,
    what_softmax_makes_of_it,
    whether_the_largest_weight_stays_under_a_limit,
    that_the_division_is_a_temperature,
    what_the_division_takes_for_granted,
)
