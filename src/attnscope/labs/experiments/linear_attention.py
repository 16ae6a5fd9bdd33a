"""What does attention cost without its softmax, and what does it lose?

Softmax needs all scores of a query before it can weigh one of them. If exp(q.k) is replaced by phi(q).phi(k), the sums
can be taken in another order: first over the keys, into one small matrix, then with each query. That matrix is all that
is remembered of the text, however long it was.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope import Causal, attend
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict, best_times, count_flops
from attnscope.variants import linear


def counting_operations(lab: Lab) -> None:
    """Attention multiplies (T x d)(d x T) and then (T x T)(T x d): 4 T^2 d operations. Linear attention multiplies
    (d x T)(T x d) and then (T x d)(d x d): 4 T d^2, and 2 T d for the sums that it divides by. The operations are
    counted while the code runs, not by the formula.

    So the two cost the same where T = d, a length at which nobody has a problem, and from there on each doubling of T
    doubles the advantage. Time follows with less: linear attention that looks back only goes through the text piece by
    piece, in small products.
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
        ("tokens T", "width d", "softmax", "linear", "softmax / linear"),
        rows,
        note="No mask.",
    )
    x = torch.randn(1, lab.choose(small=8192, full=32_768), 64, generator=generator)
    times = best_times(
        {"softmax": lambda: attend(x, x, x, mask=Causal()), "linear": lambda: linear.chunked(x, x, x)},
        seconds=lab.choose(small=3, full=20),
    )
    faster = times["softmax"] / times["linear"]
    lab.table(
        f"Seconds for {x.shape[1]:,} tokens of width 64 on one core, looking back only",
        ("attention", "best time"),
        [("softmax, fused", times["softmax"]), ("linear, in chunks", times["linear"])],
    )
    longer = [costs[1024, 64][kind] / costs[512, 64][kind] for kind in (0, 1)]
    wider = [costs[1024, 128][kind] / costs[1024, 64][kind] for kind in (0, 1)]
    lab.decide(
        "23a",
        Verdict.HOLDS,
        f"Twice the tokens are {longer[1]:.2f} times the operations ({longer[0]:.2f} with a softmax), twice the width "
        f"{wider[1]:.2f} times ({wider[0]:.2f}). At {x.shape[1]:,} tokens it also takes {faster:.1f} times less time.",
        Measurement(name="linear, twice the tokens", value=longer[1], low=1.99, high=2.01),
        Measurement(name="linear, twice the width", value=wider[1], low=3.9, high=4.01),
        Measurement(name="softmax, twice the tokens", value=longer[0], low=3.99, high=4.01),
        Measurement(name="softmax, twice the width", value=wider[0], low=1.99, high=2.01),
        Measurement(name="softmax / linear at T = d", value=rows[0][-1], low=0.95, high=1.05),
        Measurement(name="time of softmax / time of linear", value=faster, low=1.2),
    )


def fast_weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The fast-weight programmer: each token adds value outer key to a matrix, then reads the matrix with its query."""
    memory = query.new_zeros(value.shape[-1], key.shape[-1])
    outputs = []
    for q, k, v in zip(query, key, value, strict=True):
        memory = memory + torch.outer(v, k)
        outputs.append(memory @ q)
    return torch.stack(outputs)


def the_same_since_1991(lab: Lab) -> None:
    """A fast-weight programmer writes an outer product into a matrix at each token, and reads the matrix with a query:
    four lines of code, above. Linear attention is compared with it in its three forms: as a T x T matrix of scores, in
    chunks, and token by token.

    Two things were added since. A feature map, which only means that keys and queries are mapped before they come in.
    And a division by the sum of the weights, which is the same memory once more: give every value one more number, a
    constant 1, and what is read in its place is the sum to divide by.
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
        "elu + 1, divided": (read[:, :-1] / read[:, -1:], {}),
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
        "Largest difference from the fast-weight programmer, as a part of the largest output",
        ("", "as a matrix", "in chunks", "token by token"),
        rows,
    )
    worst = max(max(row[1:]) for row in rows)
    lab.decide(
        "23b",
        Verdict.HOLDS,
        f"All three forms, with and without a feature map, agree with it to {worst:.0e}; the division that was added "
        "is one more value of constant 1 in the same memory.",
        Measurement(name="largest relative difference", value=worst, high=1e-11),
    )


def recall(output: Tensor, value: Tensor) -> float:
    """The share of outputs that are closer to their own value than to any other."""
    return float((torch.cdist(output, value).argmin(-1) == torch.arange(len(value))).float().mean())


def what_it_forgets(lab: Lab) -> None:
    """Pairs of random keys and values are stored, then each key is asked for its value. The sum of outer products
    answers with a blur: what other keys have written is read as well, and the more there are, the less of the right
    value can be told from them. Softmax keeps all pairs and picks one. That is what its T^2 buys.

    The map elu + 1 makes all weights positive, so that they can be divided by their sum, and does far worse here: where
    all features are positive, any two keys look alike. The exponential of each number as a feature map is no softmax
    either, since a sum of products of exponentials is not the exponential of a sum of products.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    width, times = 64, lab.choose(small=4, full=20)
    stored = (8, 16, 32, 64, 128, 256, 512)
    curves: dict[str, list[float]] = {"softmax": [], "outer products": [], "elu + 1": [], "exp of each number": []}
    for count in stored:
        shares = dict.fromkeys(curves, 0.0)
        for _ in range(times):
            key = F.normalize(torch.randn(count, width, generator=generator), dim=-1)
            value = F.normalize(torch.randn(count, width, generator=generator), dim=-1)
            long = key * math.sqrt(width)  # as long as a vector of standard normal numbers
            outputs = {
                "softmax": attend(long, long, value),
                "outer products": linear.bidirectional(key, key, value, feature_map=linear.identity, normalize=False),
                "elu + 1": linear.bidirectional(long, long, value),
                "exp of each number": linear.bidirectional(
                    long, long, value, feature_map=lambda x: (x / width**0.25).exp()
                ),
            }
            for name, output in outputs.items():
                shares[name] += recall(output, value) / times
        for name, share in shares.items():
            curves[name].append(share)
    lab.table(
        f"Share of pairs recalled by a memory of width {width}",
        ("pairs", *curves),
        list(zip(stored, *curves.values(), strict=True)),
    )
    lab.figure(
        "recall",
        lines(
            stored,
            curves,
            xlabel="pairs of key and value",
            ylabel="share recalled",
            log_x=True,
            title="A matrix of 64 x 64 forgets, softmax does not",
        ),
        "Random keys, each asked for its value: the share that is nearer to the right value than to any other.",
    )


PARTS = (counting_operations, the_same_since_1991, what_it_forgets)
