"""Attention by hand

This lab shows you how to compute attention for three tokens by hand, and checks the printed examples of two texts.

With three tokens of two numbers each, attention fits on paper. Queries and keys are the tokens themselves. A score is
the dot product of a query and a key, divided by sqrt(2). Softmax takes the exponential of each score and divides by the
sum of its row: these are the weights. An output is the weighted sum of the values.

Printed numbers are rounded, so the lab measures differences in units of the last printed digit. Up to half a unit is
rounding; a whole unit or more is a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attnscope import attend
from attnscope.attention.reference import attention
from attnscope.figures import grouped_bars, lines
from attnscope.labs import Lab, Measurement, Verdict

TOKENS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
VALUES = torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]], dtype=torch.float64)
ROUNDING = 0.501
"""In units of the last printed digit; slightly more than half, for numbers halfway between two."""


def softmax_by_hand(scores: Sequence[float]) -> list[float]:
    """Return the exponentials, divided by their sum.

    >>> softmax_by_hand([0.0, 0.0])
    [0.5, 0.5]
    """
    exponentials = [math.exp(score) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def difference_in_units(printed: Sequence[float], found: Sequence[float], digits: int) -> float:
    """Return the largest difference of two rows, in units of the last printed digit.

    >>> round(difference_in_units((0.39, 0.22), (0.401, 0.198), digits=2), 3)
    2.2
    """
    return max(abs(one - other) for one, other in zip(printed, found, strict=True)) * 10**digits


def format_row(numbers: Sequence[float], digits: int) -> str:
    """Format a row as texts print it.

    >>> format_row([0.5, 0.25], 2)
    '(0.50, 0.25)'
    """
    return f"({', '.join(f'{number:.{digits}f}' for number in numbers)})"


def weights_by_hand(scale: float) -> list[list[float]]:
    """Compute the weights of the three tokens by hand."""
    pairs = TOKENS.tolist()
    return [softmax_by_hand([scale * (x * key[0] + y * key[1]) for key in pairs]) for x, y in pairs]


def weights_of_three_tokens(lab: Lab) -> None:
    """The tokens are (1, 0), (0, 1) and (1, 1). The first query has the dot products 1, 0 and 1 with the three keys,
    the third has 1, 1 and 2.

    One text computes all rows on paper, and the third row without the scaling by sqrt(2). The lab computes them with
    exponentials only, and checks them with `attend`: if the values are the identity matrix, the output equals the
    weights.
    """
    by_hand, unscaled = weights_by_hand(1 / math.sqrt(2)), weights_by_hand(1.0)
    weights = attend(TOKENS[None], TOKENS[None], torch.eye(3, dtype=torch.float64)[None])[0].tolist()
    checked = Measurement(
        name="by hand and with `attend`, largest difference",
        value=max(difference_in_units(one, other, 0) for one, other in zip(by_hand, weights, strict=True)),
        high=1e-12,
    )
    rows = [
        (name, format_row(row, digits), format_row(found, digits), difference_in_units(row, found, digits))
        for name, row, found, digits in (
            ("first", (0.401, 0.198, 0.401), by_hand[0], 3),
            ("second", (0.198, 0.401, 0.401), by_hand[1], 3),
            ("third", (0.276, 0.276, 0.448), by_hand[2], 3),
            ("third, not scaled", (0.21, 0.21, 0.58), unscaled[2], 2),
        )
    ]
    off, off_unscaled = rows[2][-1], rows[3][-1]
    columns = ("row", "printed", "computed", "difference in units of the last digit")
    lab.table("Weights of three tokens, computed on paper", columns, rows, note="Up to half a unit is rounding.")
    lab.decide(
        "3a",
        Verdict.DOES_NOT_HOLD,
        f"It is {format_row(by_hand[2], 3)}; the printed row differs by {off:.0f} units of its last digit.",
        Measurement(name="difference in units of the last printed digit", value=off, low=50),
        checked,
    )
    lowest, highest = min(by_hand[2]), max(by_hand[2])
    output = attend(TOKENS[None], TOKENS[None], VALUES[None])[0, 2]
    from_mean = float((output - VALUES.mean(dim=0)).abs().max())
    lab.decide(
        "45",
        Verdict.DOES_NOT_HOLD,
        f"The third token gives itself {highest / lowest:.2f} times the weight of each other token. Its output is "
        "(5, 5), as that of uniform weights, but by symmetry: any weights that treat the first two values alike give "
        "(5, 5).",
        Measurement(name="largest weight / smallest weight", value=highest / lowest, low=2, high=2.1),
        Measurement(name="output compared with the mean of the values", value=from_mean, high=1e-12),
    )
    lab.decide(
        "31",
        Verdict.HOLDS,
        f"It is {format_row(unscaled[2], 3)}, which rounds to the printed row.",
        Measurement(name="difference in units of the last printed digit", value=off_unscaled, high=ROUNDING),
        checked,
    )


def the_same_tokens_in_another_text(lab: Lab) -> None:
    """Another text has the same three tokens twice: a program prints their weights, and the prose below describes them
    row by row. The two disagree.
    """
    first, _, third = weights_by_hand(1 / math.sqrt(2))
    prose_first, program_first, prose_third = (0.39, 0.22, 0.39), (0.401, 0.198, 0.401), (0.27, 0.27, 0.46)
    off_prose, off_program = difference_in_units(prose_first, first, 2), difference_in_units(program_first, first, 3)
    off_third = difference_in_units(prose_third, third, 2)
    rows = [
        ("first, prose", format_row(prose_first, 2), format_row(first, 2), off_prose),
        ("first, program", format_row(program_first, 3), format_row(first, 3), off_program),
        ("third, prose", format_row(prose_third, 2), format_row(third, 2), off_third),
    ]
    columns = ("row", "printed", "computed", "difference in units of the last digit")
    lab.table("Weights of three tokens, in prose and program", columns, rows, note="Up to half a unit is rounding.")
    printed = {"first text": (0.276, 0.276, 0.448), "second text": prose_third, "computed": third}
    groups = {f"key {key + 1}": {name: row[key] for name, row in printed.items()} for key in range(3)}
    drawing = grouped_bars(groups, ylabel="weight", title="Both printed rows of the third query are too flat")
    lab.figure("third_row", drawing, "The weights of the third query. The third key gets half of the weight.")
    lab.decide(
        "4a",
        Verdict.DOES_NOT_HOLD,
        f"It is {format_row(first, 2)}; the prose differs by {off_prose:.1f} units of its last digit.",
        Measurement(name="difference in units of the last printed digit", value=off_prose, low=2),
    )
    lab.decide(
        "4b",
        Verdict.HOLDS,
        f"It is {format_row(first, 4)}, which rounds to the printed row.",
        Measurement(name="difference in units of the last printed digit", value=off_program, high=ROUNDING),
    )
    lab.decide(
        "35",
        Verdict.DOES_NOT_HOLD,
        f"It is {format_row(third, 2)}; the prose differs by {off_third:.1f} units of its last digit.",
        Measurement(name="difference in units of the last printed digit", value=off_third, low=4),
    )


def outputs_of_three_tokens(lab: Lab) -> None:
    """The values are (10, 0), (0, 10) and (5, 5). Each sums to 10, and weights sum to 1, so every output must sum to 10
    as well. Such a check finds a mistake without computing anything: the printed second row sums to 8.
    """
    output = attend(TOKENS[None], TOKENS[None], VALUES[None])[0].tolist()
    printed = ((6.02, 3.99), (1.98, 6.02), (5.00, 5.00))
    rows = [
        (index + 1, format_row(printed_row, 2), format_row(row, 2), sum(printed_row), sum(row))
        for index, (printed_row, row) in enumerate(zip(printed, output, strict=True))
    ]
    lab.table("Outputs of three tokens", ("row", "printed", "computed", "printed sum", "computed sum"), rows)
    lab.decide(
        "3b",
        Verdict.DOES_NOT_HOLD,
        f"It is {format_row(output[1], 2)}. The printed row sums to {sum(printed[1]):.2f}, but every output must "
        f"sum to {sum(output[1]):.2f}.",
        Measurement(
            name="difference in units of the last printed digit",
            value=difference_in_units(printed[1], output[1], 2),
            low=199,
            high=201,
        ),
        Measurement(name="sum of the computed row", value=sum(output[1]), low=9.999, high=10.001),
        Measurement(name="sum of the printed row", value=sum(printed[1]), low=7.99, high=8.01),
    )


def share_attending_most_to_itself(queries: Tensor, keys: Tensor) -> float:
    """Return the share of tokens whose own key gets more weight than any other key; a tie does not count."""
    weights = (queries @ keys.mT / queries.shape[-1] ** 0.5).softmax(dim=-1)
    own = weights.diagonal(dim1=-2, dim2=-1)
    others = weights - torch.diag_embed(own)
    return (own > others.amax(dim=-1) + 1e-12).double().mean().item()


def self_attention_and_the_diagonal(lab: Lab) -> None:
    """From the three tokens, one text concludes that a token always attends most to itself. In its own example, two of
    three do not: the first query gives the third key as much weight as its own. A shorter counterexample: of the tokens
    (1, 0) and (2, 0), the first prefers the second, because a longer key has a larger dot product.

    In a model, two different matrices compute queries and keys. At initialisation they are independent, so a token's
    own key is one among many. If queries equal keys and all have the same length, the own key always has the largest
    weight, because the dot product of two vectors of equal length is largest if they are equal.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    draws, tokens, width = lab.choose(small=1_000, full=10_000), 10, 16
    inputs = torch.randn(draws, tokens, width, generator=generator, dtype=torch.float64)
    one, other = (
        torch.randn(draws, width, width, generator=generator, dtype=torch.float64) / width**0.5 for _ in range(2)
    )
    short_and_long = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    separate = share_attending_most_to_itself(inputs @ one, inputs @ other)
    shared = share_attending_most_to_itself(inputs @ one, inputs @ one)
    even = share_attending_most_to_itself(normalize(inputs @ one, dim=-1), normalize(inputs @ one, dim=-1))
    rows = [
        ("the three tokens", share_attending_most_to_itself(TOKENS, TOKENS)),
        ("the tokens (1, 0) and (2, 0)", share_attending_most_to_itself(short_and_long, short_and_long)),
        ("10 random tokens, two random projections", separate),
        ("10 random tokens, queries equal keys", shared),
        ("10 random tokens, queries equal keys, equal lengths", even),
    ]
    lab.table("Tokens that attend most to themselves", ("tokens", "share"), rows, note="A tie does not count.")
    lab.decide(
        "5",
        Verdict.DOES_NOT_HOLD,
        f"With separate random projections for queries and keys, {separate:.1%} of ten tokens attend most to "
        f"themselves, which is chance; in the example it is {rows[0][1]:.0%} of three. All tokens do if queries equal "
        "keys and have the same length.",
        Measurement(name="share in the example", value=rows[0][1], low=0.33, high=0.34),
        Measurement(name="share with separate projections", value=separate, low=0.07, high=0.13),
        Measurement(name="share if queries equal keys", value=shared, low=0.85, high=0.99),
        Measurement(name="share if queries equal keys of the same length", value=even, low=1.0, high=1.0),
    )


def identity_queries_and_keys(lab: Lab) -> None:
    """Queries and keys are the rows of the identity matrix of size 4. A token has the dot product 1 with its own key
    and 0 with all others. Scaled by sqrt(4), the scores are 0.5 and 0, which is a small difference.

    A text prints the outputs for the values 0 to 15 with the words "each row recovers the matching value row". Each
    output is the mean of all value rows, moved towards its own row. How far it moves is the difference of the two
    weights, which is small unless the scale is large. The last column shows this fraction.
    """
    identity, values = torch.eye(4, dtype=torch.float64), torch.arange(16, dtype=torch.float64).reshape(4, 4)
    rows = []
    for scale in (0.5, 1.0, 2.0, 4.0, 8.0):
        output, weights = (found[0] for found in attention(identity[None], identity[None], values[None], scale=scale))
        way = (weights[0, 0] - weights[0, 1]).item()
        rows.append((scale, weights[0, 0].item(), weights[0, 1].item(), format_row(output[0].tolist(), 2), way))
    columns = ("scale", "own weight", "other weights", "first output", "fraction of the way")
    note = "0.5 is the default scale. The first value row is (0, 1, 2, 3), the mean of all is (6, 7, 8, 9)."
    lab.table("Queries and keys are the identity of size 4", columns, rows, note=note)

    _, own, other, output, way = rows[0]
    lab.decide(
        "6",
        Verdict.HOLDS,
        f"The diagonal is {own:.4f} and the rest is {other:.4f}.",
        Measurement(
            name="difference in units of the last printed digit",
            value=difference_in_units((0.355, 0.215), (own, other), 3),
            high=ROUNDING,
        ),
    )
    lab.decide(
        "34",
        Verdict.DOES_NOT_HOLD,
        f"The first output is {output}, and its value row is (0, 1, 2, 3): {way:.0%} of the way from the mean "
        "of all rows to its own.",
        Measurement(name="fraction of the way at the default scale", value=way, low=0.139, high=0.140),
        Measurement(name="fraction of the way at 16 times the scale", value=rows[-1][-1], low=0.99),
    )


def diagonal_and_dimension(lab: Lab) -> None:
    """The same text expects a sharper diagonal in a higher dimension. With the identity matrix of size d, there are d
    keys, and the matching score is 1/sqrt(d). Both make the diagonal weaker. It is also weaker with only four tokens,
    relative to uniform weights, and without the scaling, because there are more keys.

    What does become sharper is the match of random vectors: a vector of d standard normal numbers has a dot product of
    about d with itself, so its score is about sqrt(d). The text probably means this case; but rows of the identity have
    length 1.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    sizes, curves = (4, 16, 64, 256), {"all rows of the identity": [], "four of its rows": [], "four random rows": []}
    for size in sizes:
        identity = torch.eye(size, dtype=torch.float64)[None]
        random = torch.randn(lab.choose(small=200, full=2_000), 4, size, generator=generator, dtype=torch.float64)
        for name, rows in zip(curves, (identity, identity[:, :4], random), strict=True):
            weights = attention(rows, rows, rows)[1]
            curves[name].append(weights.diagonal(dim1=-2, dim2=-1).mean().item())
    whole = curves["all rows of the identity"]
    even = [size * weight for size, weight in zip(sizes, whole, strict=True)]
    rows = list(zip(sizes, whole, even, *list(curves.values())[1:], strict=True))
    columns = ("d", "all rows of the identity", "relative to uniform", "four rows of the identity", "four random rows")
    lab.table("Weight of the own key", columns, rows)
    title = "The weight of the own key falls with the dimension, unless vectors get longer"
    drawing = lines(sizes, curves, xlabel="d", ylabel="weight of the own key", title=title, log_x=True)
    lab.figure("diagonal", drawing, "The diagonal weight if queries equal keys, with the default scale.")
    lab.decide(
        "33",
        Verdict.DOES_NOT_HOLD,
        f"The diagonal is {whole[0]:.3f}, {whole[1]:.3f} and {whole[2]:.3f} at d = 4, 16 and 64. Relative to uniform "
        f"weights it falls too, from {even[0]:.2f} to {even[2]:.2f}.",
        Measurement(name="diagonal at 16 / at 4", value=whole[1] / whole[0], low=0.222, high=0.223),
        Measurement(name="diagonal at 64 / at 16", value=whole[2] / whole[1], low=0.223, high=0.225),
        Measurement(name="relative to uniform, at 64 / at 4", value=even[2] / even[0], low=0.79, high=0.80),
    )


PARTS = (
    weights_of_three_tokens,
    the_same_tokens_in_another_text,
    outputs_of_three_tokens,
    self_attention_and_the_diagonal,
    identity_queries_and_keys,
    diagonal_and_dimension,
)
