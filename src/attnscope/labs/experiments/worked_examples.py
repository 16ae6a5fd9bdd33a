"""Do the examples that are worked out by hand come out as printed?

Three tokens of two numbers each are few enough for attention on paper. Each token is a query, and is also a key: the
dot product of a query and a key, divided by the root of 2, is a score. Softmax takes the exponential of each score and
divides by the sum of its row; these are the weights. An output is the sum of the value vectors, each times its weight.

Printed numbers are rounded, so they are compared in units of their last printed digit. Up to half a unit is rounding;
a whole unit and more is a mistake.
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
"""Of the last printed digit; a little more than a half, for a number that lies in the middle of two."""


def softmax_by_hand(scores: Sequence[float]) -> list[float]:
    """Exponentials, each divided by their sum.

    >>> softmax_by_hand([0.0, 0.0])
    [0.5, 0.5]
    """
    exponentials = [math.exp(score) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def units_off(printed: Sequence[float], found: Sequence[float], digits: int) -> float:
    """How far printed numbers are from the found ones at the most, in units of the last printed digit.

    >>> round(units_off((0.39, 0.22), (0.401, 0.198), digits=2), 3)
    2.2
    """
    return max(abs(one - other) for one, other in zip(printed, found, strict=True)) * 10**digits


def in_words(numbers: Sequence[float], digits: int) -> str:
    """A row as texts print it.

    >>> in_words([0.5, 0.25], 2)
    '(0.50, 0.25)'
    """
    return f"({', '.join(f'{number:.{digits}f}' for number in numbers)})"


def three_rows(scale: float) -> list[list[float]]:
    """The weights of the three tokens, by hand."""
    pairs = TOKENS.tolist()
    return [softmax_by_hand([scale * (x * key[0] + y * key[1]) for key in pairs]) for x, y in pairs]


def the_weights_of_three_tokens(lab: Lab) -> None:
    """The tokens are (1, 0), (0, 1) and (1, 1), and both queries and keys are the tokens themselves. The first query
    has the dot products 1, 0 and 1 with the three keys, the third one has 1, 1 and 2.

    One text works out all rows on paper, and says what the third row would be without the division by the root of 2.
    Here they are computed with nothing but exponentials, and checked against `attend`: its output is the weights
    themselves if the value vectors are the rows of the identity.
    """
    by_hand, unscaled = three_rows(1 / math.sqrt(2)), three_rows(1.0)
    weights = attend(TOKENS[None], TOKENS[None], torch.eye(3, dtype=torch.float64)[None])[0].tolist()
    checked = Measurement(
        name="by hand and by `attend`, largest difference",
        value=max(units_off(one, other, 0) for one, other in zip(by_hand, weights, strict=True)),
        high=1e-12,
    )
    rows = [
        (name, in_words(row, digits), in_words(found, digits), units_off(row, found, digits))
        for name, row, found, digits in (
            ("first", (0.401, 0.198, 0.401), by_hand[0], 3),
            ("second", (0.198, 0.401, 0.401), by_hand[1], 3),
            ("third", (0.276, 0.276, 0.448), by_hand[2], 3),
            ("third, not divided", (0.21, 0.21, 0.58), unscaled[2], 2),
        )
    ]
    off, off_unscaled = rows[2][-1], rows[3][-1]
    columns = ("row", "printed", "computed", "units of the last digit apart")
    lab.table("Weights of three tokens, on paper", columns, rows, note="Up to half a unit is rounding.")
    lab.decide(
        "3a",
        Verdict.DOES_NOT_HOLD,
        f"It is {in_words(by_hand[2], 3)}; the printed one is {off:.0f} units of its last digit away.",
        Measurement(name="units of the last printed digit apart", value=off, low=50),
        checked,
    )
    lab.decide(
        "31",
        Verdict.HOLDS,
        f"It is {in_words(unscaled[2], 3)}, which rounds to what is printed.",
        Measurement(name="units of the last printed digit apart", value=off_unscaled, high=ROUNDING),
        checked,
    )


def the_same_tokens_in_another_text(lab: Lab) -> None:
    """Another text has the same three tokens twice: a program prints their weights, and the prose below reads them row
    by row. The two do not agree with each other.
    """
    first, _, third = three_rows(1 / math.sqrt(2))
    prose_first, program_first, prose_third = (0.39, 0.22, 0.39), (0.401, 0.198, 0.401), (0.27, 0.27, 0.46)
    off_prose, off_program = units_off(prose_first, first, 2), units_off(program_first, first, 3)
    off_third = units_off(prose_third, third, 2)
    rows = [
        ("first, in the prose", in_words(prose_first, 2), in_words(first, 2), off_prose),
        ("first, by the program", in_words(program_first, 3), in_words(first, 3), off_program),
        ("third, in the prose", in_words(prose_third, 2), in_words(third, 2), off_third),
    ]
    columns = ("row", "printed", "computed", "units of the last digit apart")
    lab.table("Weights of three tokens, in prose and by program", columns, rows, note="Up to half a unit is rounding.")
    printed = {"on paper": (0.276, 0.276, 0.448), "in the other text's prose": prose_third, "computed": third}
    groups = {f"key {key + 1}": {name: row[key] for name, row in printed.items()} for key in range(3)}
    drawing = grouped_bars(groups, ylabel="weight", title="Both printed rows of the third query are too flat")
    lab.figure("third_row", drawing, "The weights of the third query. The third key gets half of the weight.")
    lab.decide(
        "4a",
        Verdict.DOES_NOT_HOLD,
        f"It is {in_words(first, 2)}; the prose is {off_prose:.1f} units of its last digit away.",
        Measurement(name="units of the last printed digit apart", value=off_prose, low=2),
    )
    lab.decide(
        "4b",
        Verdict.HOLDS,
        f"It is {in_words(first, 4)}, which rounds to what is printed.",
        Measurement(name="units of the last printed digit apart", value=off_program, high=ROUNDING),
    )
    lab.decide(
        "35",
        Verdict.DOES_NOT_HOLD,
        f"It is {in_words(third, 2)}; the prose is {off_third:.1f} units of its last digit away.",
        Measurement(name="units of the last printed digit apart", value=off_third, low=4),
    )


def the_outputs_of_three_tokens(lab: Lab) -> None:
    """The value vectors are (10, 0), (0, 10) and (5, 5). Each of them sums to 10, and weights sum to 1: so every output
    has to sum to 10 as well, whatever the weights are. A check like this finds a slip of the pen without computing
    anything: the printed second row sums to 8.
    """
    output = attend(TOKENS[None], TOKENS[None], VALUES[None])[0].tolist()
    printed = ((6.02, 3.99), (1.98, 6.02), (5.00, 5.00))
    rows = [
        (at + 1, in_words(said, 2), in_words(row, 2), sum(said), sum(row))
        for at, (said, row) in enumerate(zip(printed, output, strict=True))
    ]
    lab.table("Outputs of three tokens", ("row", "printed", "computed", "printed sum", "computed sum"), rows)
    lab.decide(
        "3b",
        Verdict.DOES_NOT_HOLD,
        f"It is {in_words(output[1], 2)}. The printed row sums to {sum(printed[1]):.2f}, and every output sums to "
        f"{sum(output[1]):.2f} here.",
        Measurement(
            name="units of the last printed digit apart", value=units_off(printed[1], output[1], 2), low=199, high=201
        ),
        Measurement(name="sum of the computed row", value=sum(output[1]), low=9.999, high=10.001),
        Measurement(name="sum of the printed row", value=sum(printed[1]), low=7.99, high=8.01),
    )


def share_strongest_on_itself(queries: Tensor, keys: Tensor) -> float:
    """The share of tokens whose own key gets more weight than any other key; a tie is not more."""
    weights = (queries @ keys.mT / queries.shape[-1] ** 0.5).softmax(dim=-1)
    own = weights.diagonal(dim1=-2, dim2=-1)
    others = weights - torch.diag_embed(own)
    return (own > others.amax(dim=-1) + 1e-12).double().mean().item()


def whether_a_token_attends_most_to_itself(lab: Lab) -> None:
    """From the three tokens one text concludes that a token always attends most to itself. In the example itself two of
    three do not: the first query gives as much to the third key as to its own. A shorter counter-example: of the tokens
    (1, 0) and (2, 0), the first prefers the second, because a longer key has a larger dot product.

    In a model, queries and keys are made from the tokens by two different matrices, and before training these have
    nothing to do with each other: then a token's own key is one among all others. Where queries are the keys, and all
    of them have the same length, no other key can be better: two vectors of a length have their largest dot product
    when they are equal.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    draws, tokens, width = lab.choose(small=1_000, full=10_000), 10, 16
    inputs = torch.randn(draws, tokens, width, generator=generator, dtype=torch.float64)
    one, other = (
        torch.randn(draws, width, width, generator=generator, dtype=torch.float64) / width**0.5 for _ in range(2)
    )
    short_and_long = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    separate = share_strongest_on_itself(inputs @ one, inputs @ other)
    shared = share_strongest_on_itself(inputs @ one, inputs @ one)
    even = share_strongest_on_itself(normalize(inputs @ one, dim=-1), normalize(inputs @ one, dim=-1))
    rows = [
        ("the three tokens", share_strongest_on_itself(TOKENS, TOKENS)),
        ("the tokens (1, 0) and (2, 0)", share_strongest_on_itself(short_and_long, short_and_long)),
        ("10 random tokens, queries and keys from two random matrices", separate),
        ("10 random tokens, queries are the keys", shared),
        ("10 random tokens, queries are the keys, all of one length", even),
    ]
    lab.table("Who attends most to itself", ("tokens", "share of tokens"), rows, note="A tie is not the most.")
    lab.decide(
        "5",
        Verdict.DOES_NOT_HOLD,
        f"Before training, with separate matrices for queries and keys, {separate:.1%} of ten tokens attend most to "
        f"themselves, which is chance; in the example it is {rows[0][1]:.0%} of three. All do where queries are the "
        "keys and have one length.",
        Measurement(name="share in the example", value=rows[0][1], low=0.33, high=0.34),
        Measurement(name="share with separate matrices", value=separate, low=0.07, high=0.13),
        Measurement(name="share where queries are keys", value=shared, low=0.85, high=0.99),
        Measurement(name="share where queries are keys of one length", value=even, low=1.0, high=1.0),
    )


def what_the_identity_finds_again(lab: Lab) -> None:
    """Four queries equal four keys, each a row of the identity: a token matches its own key with 1 and all others with
    0. Divided by the root of 4, that is a score of a half against 0, and half a point is not much of a difference.

    A text prints the outputs for the values 0 to 15 under the words "each row recovers the matching value row". Every
    output is the mean of all value rows, moved some way towards its own row. How far is the difference of the two
    weights, and that is small until the scale is large. The last column says which part of the way is gone.
    """
    identity, values = torch.eye(4, dtype=torch.float64), torch.arange(16, dtype=torch.float64).reshape(4, 4)
    rows = []
    for scale in (0.5, 1.0, 2.0, 4.0, 8.0):
        output, weights = (found[0] for found in attention(identity[None], identity[None], values[None], scale=scale))
        way = (weights[0, 0] - weights[0, 1]).item()
        rows.append((scale, weights[0, 0].item(), weights[0, 1].item(), in_words(output[0].tolist(), 2), way))
    columns = ("scale", "own weight", "other weights", "first output", "part of the way")
    note = "0.5 is the usual scale. The first value row is (0, 1, 2, 3), the mean of all is (6, 7, 8, 9)."
    lab.table("Queries and keys are the identity of size 4", columns, rows, note=note)

    _, own, other, output, way = rows[0]
    lab.decide(
        "6",
        Verdict.HOLDS,
        f"The diagonal is {own:.4f} and the rest is {other:.4f}.",
        Measurement(
            name="units of the last printed digit apart",
            value=units_off((0.355, 0.215), (own, other), 3),
            high=ROUNDING,
        ),
    )
    lab.decide(
        "34",
        Verdict.DOES_NOT_HOLD,
        f"The first output is {output}, and its value row is (0, 1, 2, 3): that is {way:.0%} of the way from the mean "
        "of all rows to its own.",
        Measurement(name="part of the way at the usual scale", value=way, low=0.139, high=0.140),
        Measurement(name="part of the way at 16 times the scale", value=rows[-1][-1], low=0.99),
    )


def whether_more_dimensions_are_sharper(lab: Lab) -> None:
    """The same text expects a sharper diagonal in a higher dimension. With the identity of size d there are d keys, the
    matching score is 1 / root of d, and both make the diagonal weaker. It gets weaker also if there are still four
    tokens, and compared with an even share; and without the division, because there are more keys.

    What does get sharper is a match of random vectors: a vector of d standard normal numbers has the dot product d with
    itself, so that the score is the root of d. That is probably what the text has in mind; but rows of the identity all
    have length 1.
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
    columns = ("d", "all rows of the identity", "times an even share", "four rows of the identity", "four random rows")
    lab.table("The weight of the own key", columns, rows)
    title = "The own key's weight falls with the dimension, unless vectors get longer"
    drawing = lines(sizes, curves, xlabel="d", ylabel="weight of the own key", title=title, log_x=True)
    lab.figure("diagonal", drawing, "The diagonal where queries are keys, scaled as usual.")
    lab.decide(
        "33",
        Verdict.DOES_NOT_HOLD,
        f"The diagonal is {whole[0]:.3f}, {whole[1]:.3f} and {whole[2]:.3f} at d = 4, 16 and 64; as a multiple of an "
        f"even share it falls, too, from {even[0]:.2f} to {even[2]:.2f}.",
        Measurement(name="diagonal at 16 / at 4", value=whole[1] / whole[0], low=0.222, high=0.223),
        Measurement(name="diagonal at 64 / at 16", value=whole[2] / whole[1], low=0.223, high=0.225),
        Measurement(name="multiple of an even share, at 64 / at 4", value=even[2] / even[0], low=0.79, high=0.80),
    )


PARTS = (
    the_weights_of_three_tokens,
    the_same_tokens_in_another_text,
    the_outputs_of_three_tokens,
    whether_a_token_attends_most_to_itself,
    what_the_identity_finds_again,
    whether_more_dimensions_are_sharper,
)
