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
from torch import Tensor, nn

from attnscope import attend
from attnscope.attention import Temperature
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.labs.statistics import mean_with_error

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
    sizes = scores_by_dimension(lab)[512].abs()
    largest, over = sizes.amax(dim=-1).mean().item(), (sizes >= 100).double().mean().item()
    lab.decide(
        "39c",
        Verdict.DOES_NOT_HOLD,
        f"At d_k = 512 the standard deviation is {rows[2][3]:.1f}, and the largest of ten dot products is "
        f"{largest:.0f} on average, positive or negative. {over:.2%} are 100 or more. Only vectors of the same "
        "direction reach 512.",
        Measurement(name="standard deviation at 512", value=rows[2][3], low=21.5, high=23.5),
        Measurement(name="largest of ten at 512, mean", value=largest, low=38, high=46),
        Measurement(name="share of 100 or more at 512", value=over, high=0.001),
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


PROGRAM = {8: (2.38, 0.5765, 0.2213), 64: (7.89, 0.9998, 0.2697), 512: (22.64, 1.0000, 0.2381)}
"""The printed output of the program: standard deviation of the scores, largest weight without and with the scaling."""


def run_program(dimension: int, generator: torch.Generator) -> tuple[float, float, float]:
    """Return what the program of the text computes for one d_k, from one draw."""
    query, keys = (torch.randn(count, dimension, generator=generator) for count in (1, KEYS))
    scores = query @ keys.T
    largest = [(scores / divisor).softmax(dim=-1).max().item() for divisor in (1, dimension**0.5)]
    return scores.std().item(), largest[0], largest[1]


def printed_output_of_seed_42(lab: Lab) -> None:
    """One text prints a program, its seed and its output. The lab runs it. Its numbers do not depend on the seed
    of this run.

    The printed output agrees with the conclusion of the text: at 512 dimensions, one key gets everything. The output of
    the program does not: the draw of this seed happens to have a small spread, and its largest weight is 0.59. The
    conclusion is about the typical draw, and holds for it (claim 1b); a single draw cannot show it.
    """
    generator = torch.Generator().manual_seed(42)
    found = {dimension: run_program(dimension, generator) for dimension in PROGRAM}
    rows = [(dimension, *PROGRAM[dimension], *found[dimension]) for dimension in PROGRAM]
    names = ("standard deviation", "largest weight, not scaled", "largest weight, scaled")
    columns = ("d_k", *(f"printed: {name}" for name in names), *(f"run: {name}" for name in names))
    lab.table("The program of the text with seed 42", columns, rows)
    spread, largest, _ = found[512]
    differences = [
        abs(run - printed)
        for dimension in PROGRAM
        for run, printed in zip(found[dimension], PROGRAM[dimension], strict=True)
    ]
    lab.decide(
        "1d",
        Verdict.DOES_NOT_HOLD,
        f"The program prints a standard deviation of {spread:.2f} and a largest weight of {largest:.4f} at d_k = 512. "
        "None of the nine printed numbers comes from this program with this seed.",
        Measurement(name="standard deviation at 512", value=spread, low=11.2, high=11.4),
        Measurement(name="largest weight at 512, not scaled", value=largest, low=0.58, high=0.6),
        Measurement(name="smallest difference from a printed number", value=min(differences), low=0.005),
    )


def largest_weight_with_the_scaling(lab: Lab) -> None:
    """One text says that with the scaling, the largest of ten weights stays under 0.30 in every dimension. Its three
    printed draws do: 0.22, 0.27 and 0.24. But scaled scores are close to ten standard normal numbers, whatever d_k is.
    The largest of ten such numbers is about 1.5 on average, and 0.30 is then a typical weight.
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


SENTENCE = "the cat sat on the mat"


def largest_weight_at_initialisation(seed: int, *, divide: bool, unit_variance: bool) -> float:
    """Return the mean of the largest weights of an untrained head on the characters of a sentence, as one text runs it.

    Args:
        seed: The random seed.
        divide: Whether scores are divided by sqrt(d_k).
        unit_variance: Whether queries and keys have a variance of 1 per component; else they are made by the default
            initialisation of `nn.Linear`, which gives a variance of 1/3.
    """
    torch.manual_seed(seed)
    characters = sorted(set(SENTENCE))
    embedding = nn.Embedding(len(characters), 32)
    query, key = (nn.Linear(32, 16, bias=False) for _ in range(2))
    with torch.no_grad():
        if unit_variance:
            for layer in (query, key):
                nn.init.normal_(layer.weight, std=32**-0.5)
        x = embedding(torch.tensor([characters.index(character) for character in SENTENCE]))
        scores = query(x) @ key(x).T
        return (scores / (4 if divide else 1)).softmax(dim=-1).amax(dim=-1).mean().item()


def weights_at_initialisation(lab: Lab) -> None:
    """One text shows the weights of an untrained head on 22 characters, finds them reasonably uniform, and credits the
    scaling. The lab repeats this with 100 initialisations, with and without the scaling. `nn.Linear` draws smaller
    parameters than the derivation assumes, which also makes weights even. With a variance of 1, as in the derivation,
    the scaled weights are about as far from even as the unscaled ones of `nn.Linear`.
    """
    found = {
        (unit, divide): mean_with_error(
            [largest_weight_at_initialisation(seed, divide=divide, unit_variance=unit) for seed in lab.seeds(100)]
        )
        for unit in (False, True)
        for divide in (True, False)
    }
    rows = [
        (
            "unit variance" if unit else "nn.Linear",
            "scaled" if divide else "not scaled",
            mean.value,
            mean.error,
            mean.value * len(SENTENCE),
        )
        for (unit, divide), mean in found.items()
    ]
    columns = ("initialisation", "scores", "largest of 22 weights, mean", "standard error", "relative to even weights")
    lab.table("An untrained head on 22 characters", columns, rows, note="Even weights are 0.045.")
    default, unscaled, unit = (found[case].value for case in ((False, True), (False, False), (True, True)))
    lab.decide(
        "44",
        Verdict.HOLDS_WHEN,
        f"The largest of 22 weights is {default:.3f} on average, {unscaled:.3f} without the scaling, and {unit:.3f} "
        "with the scaling but queries and keys of unit variance. Even weights are 0.045.",
        Measurement(name="nn.Linear, scaled", value=default, low=0.065, high=0.08),
        Measurement(name="nn.Linear, not scaled", value=unscaled, low=0.16, high=0.22),
        Measurement(name="unit variance, scaled", value=unit, low=0.13, high=0.17),
        condition="parameters are also initialised small, as by nn.Linear",
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
    printed_output_of_seed_42,
    variance_of_the_scores,
    softmax_saturation,
    largest_weight_with_the_scaling,
    scaling_as_a_temperature,
    weights_at_initialisation,
    limits_of_the_scaling,
)
