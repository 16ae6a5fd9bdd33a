"""Linear attention

This lab shows you what attention costs without its softmax, that linear attention is a fast-weight programmer, and
how much it forgets.

Softmax needs all scores of a query before it can compute a weight. If exp(q·k) is replaced by phi(q)·phi(k), the sums
can be reordered: first over the keys, into one small matrix, then with each query ([Katharopoulos et al.,
2020](https://arxiv.org/abs/2006.16236)). That matrix is all that is stored of the sequence, however long it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope import Causal, attend
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict, best_times, count_flops
from attnscope.labs.statistics import mean_with_error
from attnscope.variants import linear


def random_features(dim: int, count: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Return a map with phi(q)·phi(k) = exp(q·k / sqrt(dim)) on average over its random directions."""
    directions = torch.randn(dim, count, generator=generator)

    def features(x: Tensor) -> Tensor:
        x = x / dim**0.25
        return (x @ directions - x.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(count)

    return features


def operations_and_time(lab: Lab) -> None:
    """Attention computes (T x d)(d x T) and then (T x T)(T x d): 4 T² d operations. Linear attention computes (d x T)(T
    x d) and then (T x d)(d x d): 4 T d², and 2 T d for the normalisation. The operations are counted while the code
    runs, not by formula.

    So both cost the same at T = d, which is a short sequence, and from there on each doubling of T doubles the
    advantage. The advantage in time is smaller: causal linear attention processes the sequence in chunks, with small
    matrix products.

    This is for a feature map with d features. A map with m features, such as the random features of the last part,
    costs 4 T m d, and as much again to compute the features.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    rows, costs = [], {}
    for length in (64, 512, 1024, 4096):
        for width in (64, 128):
            x = torch.randn(1, length, width, generator=generator)
            costs[length, width] = (
                count_flops(lambda x=x: attend(x, x, x, backend="streaming")),
                count_flops(lambda x=x: linear.bidirectional(x, x, x)),
            )
            softmax, without = costs[length, width]
            rows.append((length, width, softmax, without, softmax / without))
    lab.table(
        "Operations of one head",
        ("tokens T", "dimension d", "softmax", "linear", "softmax / linear"),
        rows,
        note="No mask.",
    )
    long = torch.randn(1, lab.choose(small=8192, full=32_768), 64, generator=generator)
    times = best_times(
        {
            "softmax": lambda: attend(long, long, long, mask=Causal()),
            "linear": lambda: linear.chunked(long, long, long),
        },
        seconds=lab.choose(small=3, full=20),
    )
    faster = times["softmax"] / times["linear"]
    lab.table(
        f"Seconds for {long.shape[1]:,} tokens of dimension 64 on one core, causal",
        ("attention", "best time"),
        [("softmax, fused", times["softmax"]), ("linear, in chunks", times["linear"])],
    )
    x = torch.randn(1, 1024, 64, generator=generator)
    features = random_features(64, 256, generator)
    more_features = count_flops(lambda: linear.bidirectional(x, x, x, feature_map=features)) / costs[1024, 64][1]
    longer = [costs[1024, 64][kind] / costs[512, 64][kind] for kind in (0, 1)]
    wider = [costs[1024, 128][kind] / costs[1024, 64][kind] for kind in (0, 1)]
    lab.decide(
        "23a",
        Verdict.HOLDS_WHEN,
        f"Twice the tokens need {longer[1]:.2f} times the operations ({longer[0]:.2f} with softmax), twice the "
        f"dimension {wider[1]:.2f} times ({wider[0]:.2f}). At {long.shape[1]:,} tokens, linear attention is "
        f"{faster:.1f} times faster. With 256 random features for a dimension of 64, it needs {more_features:.1f} "
        "times as many operations.",
        Measurement(name="linear, twice the tokens", value=longer[1], low=1.99, high=2.01),
        Measurement(name="linear, twice the dimension", value=wider[1], low=3.9, high=4.01),
        Measurement(name="softmax, twice the tokens", value=longer[0], low=3.99, high=4.01),
        Measurement(name="softmax, twice the dimension", value=wider[0], low=1.99, high=2.01),
        Measurement(name="softmax / linear at T = d", value=rows[0][-1], low=0.95, high=1.05),
        Measurement(name="time of softmax / time of linear", value=faster, low=1.2),
        Measurement(name="four times as many features as dimensions", value=more_features, low=3.9),
        condition="the feature map has about d features; with m features it costs O(T m d)",
    )


def fast_weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Run a fast-weight programmer: each token adds value outer key to a matrix, then multiplies it by its query."""
    memory = query.new_zeros(value.shape[-1], key.shape[-1])
    outputs = []
    for q, k, v in zip(query, key, value, strict=True):
        memory = memory + torch.outer(v, k)
        outputs.append(memory @ q)
    return torch.stack(outputs)


def equivalence_to_fast_weights(lab: Lab) -> None:
    """A fast-weight programmer ([Schmidhuber, 1992](https://doi.org/10.1162/neco.1992.4.1.131)) adds an outer product
    to a matrix at each token, and multiplies the matrix by a query: the loop of `fast_weights` in
    [linear_attention.py](../../src/attnscope/labs/experiments/linear_attention.py). The lab compares it with three
    forms of linear attention: as a T x T matrix of scores, in chunks, and token by token. [Schlag et al.,
    2021](https://arxiv.org/abs/2102.11174) describe the equivalence.

    Linear attention adds two things. A feature map is applied to keys and queries. And the output is divided by the sum
    of the weights, which is the same memory again: append a constant 1 to every value, and its output is the sum to
    divide by.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    length, width = 300, 16
    query, key, value = (torch.randn(length, width, generator=generator, dtype=torch.float64) for _ in range(3))
    phi = linear.elu_plus_one
    with_one = torch.cat([value, torch.ones(length, 1, dtype=value.dtype)], dim=1)
    read = fast_weights(phi(query), phi(key), with_one)
    programmers = {
        "no feature map": (fast_weights(query, key, value), {"feature_map": linear.identity, "normalize": False}),
        "elu + 1": (fast_weights(phi(query), phi(key), value), {"normalize": False}),
        "elu + 1, normalised": (read[:, :-1] / read[:, -1:], {}),
    }
    rows = []
    for name, (programmer, settings) in programmers.items():
        forms = (linear.parallel, linear.chunked, linear.recurrent)
        scale = float(programmer.abs().max())
        rows.append(
            (
                name,
                *(float((form(query, key, value, **settings)[0] - programmer).abs().max()) / scale for form in forms),
            )
        )
    lab.table(
        "Largest difference from the fast-weight programmer, relative to the largest output",
        ("feature map", "as a matrix", "in chunks", "token by token"),
        rows,
    )
    worst = max(max(row[1:]) for row in rows)
    lab.decide(
        "23b",
        Verdict.HOLDS,
        f"All three forms, with and without a feature map, agree with it to {worst:.0e}; the normalisation is "
        "one more value of constant 1 in the same memory.",
        Measurement(name="largest relative difference", value=worst, high=1e-11),
    )


def softmax_as_a_feature_map(lab: Lab) -> None:
    """One text says that softmax attention is linear attention with phi = exp. Its weights are exp(q·k), the
    exponential of a sum of products. With the exponential of each component as the feature map, they are a sum of
    exponentials, exp(q_1 + k_1) + exp(q_2 + k_2) + ..., in which no component of q is multiplied by one of k.

    There is a feature map with exp(q·k) = phi(q)·phi(k): all monomials of the components, which are infinitely many. So
    there is no matrix of fixed size to store. Random features approximate it ([Choromanski et al.,
    2021](https://arxiv.org/abs/2009.14794)).
    """
    generator = torch.Generator().manual_seed(lab.seed)
    query, key = torch.randn(2, 200, 16, generator=generator, dtype=torch.float64) / 16**0.25
    softmax = (query @ key.mT).softmax(dim=-1)
    even = torch.full_like(softmax, 1 / len(key))

    def normalised(weights: Tensor) -> Tensor:
        return weights / weights.sum(dim=-1, keepdim=True)

    def distance(weights: Tensor) -> float:
        """Return the share of the weight that differs from softmax, on average over queries."""
        return float((weights - softmax).abs().sum(dim=-1).mean() / 2)

    elementwise = normalised(query.exp() @ key.exp().mT)
    found = {
        "exp(q·k), normalised": distance(normalised((query @ key.mT).exp())),
        "phi = exp of each component": distance(elementwise),
        "even weights": distance(even),
    }
    lab.table("Share of the weight that differs from softmax", ("weights", "share"), list(found.items()))
    lab.decide(
        "46",
        Verdict.DOES_NOT_HOLD,
        f"With phi = exp, {found['phi = exp of each component']:.0%} of the weight is on other keys than with softmax, "
        f"which is as far away as even weights ({found['even weights']:.0%}). exp(q·k) itself agrees to "
        f"{found['exp(q·k), normalised']:.0e}, but is not a product of finitely many features.",
        Measurement(name="share that differs, phi = exp", value=found["phi = exp of each component"], low=0.3),
        Measurement(name="share that differs, exp(q·k)", value=found["exp(q·k), normalised"], high=1e-12),
    )
    years = 2021 - 1991
    lab.decide(
        "47",
        Verdict.DOES_NOT_HOLD,
        f"From 1991 to 2021 it is {years} years.",
        Measurement(name="years", value=years, low=30, high=30),
    )


def nearest(output: Tensor, value: Tensor) -> float:
    """Return the share of outputs that are closest to their own value."""
    return float((torch.cdist(output, value).argmin(-1) == torch.arange(len(value))).float().mean())


def recall(output: Tensor, value: Tensor) -> float:
    """Return the share of outputs whose deviation from the mean of all values points most to that of their own value.

    >>> recall(torch.tensor([[0.6, 0.5], [0.5, 0.6]]), torch.eye(2))
    1.0
    """
    mean = value.mean(0)
    similarity = F.normalize(output - mean, dim=-1) @ F.normalize(value - mean, dim=-1).T
    return float((similarity.argmax(-1) == torch.arange(len(value))).float().mean())


def recall_shares(count: int, width: int, generator: torch.Generator) -> dict[str, float]:
    """Store this many random pairs in each memory and return the share that each recalls."""
    key, value = (F.normalize(torch.randn(count, width, generator=generator), dim=-1) for _ in range(2))
    long = key * math.sqrt(width)  # the length of a standard normal vector
    maps = {
        "elu + 1": linear.elu_plus_one,
        "elementwise exp": lambda x: (x / width**0.25).exp(),
        "256 random features": random_features(width, 256, generator),
        "4,096 random features": random_features(width, 4096, generator),
    }
    outputs = {
        "softmax": attend(long, long, value),
        "outer products": linear.bidirectional(key, key, value, feature_map=linear.identity, normalize=False),
        **{name: linear.bidirectional(long, long, value, feature_map=phi) for name, phi in maps.items()},
    }
    shares = {name: recall(output, value) for name, output in outputs.items()}
    return shares | {"elu + 1, mean included": nearest(outputs["elu + 1"], value)}


def memory_capacity(lab: Lab) -> None:
    """Pairs of random keys and values are stored, then each key is used as a query for its value. The sum of outer
    products returns a mixture: contributions of other keys are added, and the more there are, the less of the right
    value can be recognised. Softmax keeps all pairs and selects one. That is the benefit of its T² operations.

    The map elu + 1 makes all weights positive, so that they can be normalised. Its output is then close to the mean of
    all values, plus a small deviation towards the right one. A layer after it can subtract a constant, so the lab
    compares deviations from the mean of the values. The last column shows what happens without this: the mean decides
    which value is closest, and the memory seems to be nearly empty.

    The exponential of each number as a feature map is not a softmax, since a sum of products of exponentials is not the
    exponential of a sum of products. Positive random features ([Choromanski et al.,
    2020](https://arxiv.org/abs/2009.14794)) approximate softmax on average, and recall more with more features.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    width, draws = 64, lab.choose(small=50, full=500)
    stored = (8, 16, 32, 64, 128, 256, 512)
    means: dict[str, list[float]] = {}
    errors: list[float] = []
    for count in stored:
        lab.step(f"storing {count} pairs")
        shares = [recall_shares(count, width, generator) for _ in range(draws)]
        for name in shares[0]:
            found = mean_with_error([share[name] for share in shares])
            means.setdefault(name, []).append(found.value)
            errors.append(found.error)
    lab.table(
        f"Share of pairs recalled by a memory of dimension {width}",
        ("pairs", *means),
        list(zip(stored, *means.values(), strict=True)),
        note=f"Mean of {draws} draws; the largest standard error is {max(errors):.2g}.",
    )
    lab.figure(
        "recall",
        lines(
            stored,
            means,
            xlabel="pairs of key and value",
            ylabel="share recalled",
            log_x=True,
            title="Memories of constant size forget, softmax does not",
            dashed=("elu + 1, mean included",),
        ),
        "The share of random keys whose output points most to the right value.",
    )


PARTS = (operations_and_time, equivalence_to_fast_weights, softmax_as_a_feature_map, memory_capacity)
