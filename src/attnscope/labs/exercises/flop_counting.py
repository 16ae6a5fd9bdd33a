"""Count the FLOPs of attention and of a recurrent layer

The product of a matrix of `n` rows and `m` columns with one of `m` rows and `p` columns has `n * p` entries, each a
sum of `m` terms. A term takes one multiplication and one addition: two floating-point operations (FLOPs). Count matrix
products only; softmax and tanh are small in comparison. All functions return integers, except the last.

- `score_multiplications(length, head_width)`: the multiplications (not the FLOPs) for the scores of one head: one score
  for every pair of a query and a key.
- `attention_flops(length, width, heads)`: the FLOPs of scaled dot-product attention for given queries, keys and values:
  the scores, and the weighted sums of the values, for all heads. A head has `width // heads` columns. No mask.
- `layer_flops(length, width, heads)`: the FLOPs of a whole self-attention layer on `x` of shape `(length, width)`:
  including the query, key, value and output projections. These four matrices are square.
- `rnn_flops(length, width)`: the FLOPs of a recurrent layer, which computes `h = tanh(W_h h + W_x x)` once per token;
  both matrices are square.
- `equal_length(width)`: the sequence length at which attention without projections (`attention_flops`) takes as many
  FLOPs as the recurrent layer.
- `doubling(length, width)`: the factor by which the FLOPs of a whole layer grow if the length doubles, as a float.
  "Four times" is a common answer; find out when it is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from attnscope.labs.exercise import Answer, WrongAnswer, expect_number

STARTER = '''
def score_multiplications(length: int, head_width: int) -> int:
    """Multiplications that the scores of one head take."""
    raise NotImplementedError


def attention_flops(length: int, width: int, heads: int) -> int:
    """FLOPs of the scores and the weighted sums, all heads together."""
    raise NotImplementedError


def layer_flops(length: int, width: int, heads: int) -> int:
    """FLOPs of a whole layer of self-attention, with its four square matrices."""
    raise NotImplementedError


def rnn_flops(length: int, width: int) -> int:
    """FLOPs of a recurrent layer of the same width."""
    raise NotImplementedError


def equal_length(width: int) -> int:
    """The length at which `attention_flops` and `rnn_flops` are the same."""
    raise NotImplementedError


def doubling(length: int, width: int) -> float:
    """How many times the FLOPs of a layer twice the length takes."""
    raise NotImplementedError
'''

SOLUTION = """
def score_multiplications(length, head_width):
    return length * length * head_width


def attention_flops(length, width, heads):
    return 4 * length**2 * width


def layer_flops(length, width, heads):
    return attention_flops(length, width, heads) + 8 * length * width**2


def rnn_flops(length, width):
    return 4 * length * width**2


def equal_length(width):
    return width


def doubling(length, width):
    return layer_flops(2 * length, width, 1) / layer_flops(length, width, 1)
"""

HINTS = (
    "Write the shape under each matrix before you multiply. What are the shapes of the queries and of the transposed "
    "keys of a head? How many entries does the product have, and how many terms has each?",
    "Attention has two products per head: one computes a square matrix of scores, the other multiplies it by the "
    "values. Compare the number of multiplications. What does splitting the columns among heads do to the sum over "
    "all heads?",
    "A whole layer has one part that grows linearly with the length and one that grows quadratically. Which of them "
    "is larger if the sequence is short and the layer is wide?",
)

AFTERWARDS = (
    "At 1,000 tokens and a width of 64, attention costs about 16 times as much as the recurrent layer; but the "
    "recurrent layer takes 1,000 sequential steps, and attention processes all tokens at once. The factor of four is "
    "approached only if the sequence is much longer than the layer is wide."
)

SIZES = ((1000, 64, 1), (1000, 64, 4), (4096, 64, 8), (7, 12, 3), (50, 30, 2), (3, 128, 16))
Count = Callable[[int, int, int], int]


def check(answer: Answer) -> None:
    """Find the first thing that is wrong with an answer."""
    scores, attention, layer, rnn, equal, doubling = (
        answer.function(name)
        for name in (
            "score_multiplications",
            "attention_flops",
            "layer_flops",
            "rnn_flops",
            "equal_length",
            "doubling",
        )
    )
    _check_scores(scores)
    _check_attention(attention)
    _check_layer(layer, attention)
    _check_rnn(rnn)
    for width in (64, 12, 768):
        _check_equal_length(_whole(equal(width), f"equal_length({width})"), width)
    for length, width in ((64, 64), (1000, 64), (16, 768), (100_000, 8), (5, 6)):
        _check_doubling(doubling, length, width)


def _counted(run: Callable[[], object]) -> int:
    """The FLOPs that torch counts while something runs on tensors that hold no numbers."""
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        run()
    return counter.get_total_flops()


def counted_attention(length: int, width: int, heads: int) -> int:
    """The FLOPs of scaled dot-product attention, as torch counts them.

    >>> counted_attention(2, 3, 1)
    48
    """

    def run() -> torch.Tensor:
        q, k, v = (torch.empty(heads, length, width // heads) for _ in range(3))
        return (q @ k.mT).softmax(-1) @ v

    return _counted(run)


def counted_layer(length: int, width: int, heads: int) -> int:
    """The FLOPs of attention with its four matrices.

    >>> counted_layer(2, 3, 1)
    192
    """

    def run() -> None:
        for _ in range(4):
            F.linear(torch.empty(length, width), torch.empty(width, width))

    return counted_attention(length, width, heads) + _counted(run)


def counted_rnn(length: int, width: int) -> int:
    """The FLOPs of the two products of a recurrent layer.

    >>> counted_rnn(2, 3)
    72
    """

    def run() -> None:
        weights, column = torch.empty(width, width), torch.empty(width, 1)
        (weights @ column + weights @ column).tanh()

    return length * _counted(run)


def _whole(value: Any, name: str) -> int:
    """What was returned, if it is a whole number."""
    value = expect_number(value, name)
    if value % 1 != 0:
        raise WrongAnswer(
            "not a whole number", f"{name} is {value}; operations are counted, so the number should be whole."
        )
    return round(value)


def _check_scores(scores: Callable[[int, int], Any]) -> None:
    for length, width in ((4096, 64), (8192, 64), (10, 3), (3, 10)):
        name = f"score_multiplications({length}, {width})"
        given, right = _whole(scores(length, width), name), counted_attention(length, width, 1) // 4
        if given == 2 * right:
            raise WrongAnswer(
                "additions counted as well",
                f"{name} is {given:,}. This function asks for multiplications alone; did you count FLOPs, or a second "
                "product?",
            )
        if given != right:
            raise WrongAnswer(
                "wrong count of multiplications",
                f"{name} is {given:,}. Try 2 tokens of width 3 on paper: write down the 2 by 2 scores, each with its "
                f"terms, and count the dots; yours says {scores(2, 3)} there.",
            )


def _check_attention(attention: Count) -> None:
    for size in SIZES:
        length, width, heads = size
        name = f"attention_flops({length}, {width}, {heads})"
        given, right = _whole(attention(*size), name), counted_attention(*size)
        if given == right:
            continue
        if 2 * given == right:
            raise WrongAnswer(
                "half missing",
                f"{name} is {given:,}, and a count of the operations as they run comes to more. Two things come in "
                "twos here: the operations of a term, and the products of a head. Are both in?",
            )
        if given == right - length * length * heads - length * width:
            raise WrongAnswer(
                "first terms without an addition",
                f"{name} is {given:,}. You count that a sum of m terms takes m - 1 additions, which is true. The task "
                "counts one for every term, as is the custom.",
            )
        if given == (length + 1) * (right // (2 * length)):
            words = f"{name} is {given:,}. That counts only keys that are not later than the query. There is no mask."
            raise WrongAnswer("only half of the pairs", words)
        one_head = attention(length, width, 1)
        if heads > 1 and one_head == counted_attention(length, width, 1):
            raise WrongAnswer(
                "heads counted wrongly",
                f"{name} is {given:,}, and with one head {one_head:,}, which is right. How wide is each of the {heads} "
                "heads? Their number and their width change together.",
            )
        raise WrongAnswer(
            "attention counted wrongly", f"{name} is {given:,}. {_growth(attention, counted_attention, size)}"
        )


def _check_layer(layer: Count, attention: Count) -> None:
    for size in SIZES:
        length, width, heads = size
        name = f"layer_flops({length}, {width}, {heads})"
        given, right = _whole(layer(*size), name), counted_layer(*size)
        inner = attention(*size)
        if given == right:
            continue
        if given == inner:
            words = f"{name} is the same as without the four matrices. What do they cost?"
            raise WrongAnswer("the four matrices are missing", words)
        share = (given - inner) / (right - inner)
        if share == 0.5:
            raise WrongAnswer(
                "multiplications taken for FLOPs",
                f"{name} is {given:,}. Attention itself is counted in FLOPs there, and the four matrices seem to be "
                "counted in multiplications. Both should be the same kind of operation.",
            )
        if share in (0.25, 0.75):
            raise WrongAnswer(
                "a matrix is missing",
                f"{name} is {given:,}. Not all four products with a square matrix are in it: go through them by name.",
            )
        raise WrongAnswer("layer counted wrongly", f"{name} is {given:,}. {_growth(layer, counted_layer, size)}")


def _check_rnn(rnn: Callable[[int, int], Any]) -> None:
    for length, width in ((1000, 64), (10, 3), (3, 10)):
        name = f"rnn_flops({length}, {width})"
        given, right = _whole(rnn(length, width), name), counted_rnn(length, width)
        if 2 * given == right:
            raise WrongAnswer(
                "half missing",
                f"{name} is {given:,}, and a count of the operations as they run comes to more. Two things come in "
                "twos here: the operations of a term, and the matrices of a step. Are both in?",
            )
        if given != right:
            growth = _growth(lambda length, width, _: rnn(length, width), _rnn_as_any, (length, width, 1))
            raise WrongAnswer("recurrent layer counted wrongly", f"{name} is {given:,}. {growth}")


def _rnn_as_any(length: int, width: int, _: int) -> int:
    return counted_rnn(length, width)


def _growth(given: Count, right: Count, size: tuple[int, int, int]) -> str:
    """How a count grows with the length and with the width, where it grows otherwise than it should."""
    length, width, heads = size
    for what, larger in {
        "length": (2 * length, width, heads),
        "width": (length, 2 * width, heads),
    }.items():
        ratio, right_ratio = given(*larger) / max(given(*size), 1), right(*larger) / right(*size)
        if abs(ratio - right_ratio) > 0.01 * right_ratio:
            return (
                f"With twice the {what} your count is {ratio:.3g} times as large, and the operations as they run grow "
                "otherwise. In which of the shapes does it stand, and how often?"
            )
    return "It grows as it should; only a constant factor is off. How many products are there, of what shapes?"


def _check_equal_length(given: int, width: int) -> None:
    if given < 1:
        raise WrongAnswer("not a length", f"equal_length({width}) is {given}; a text has one token at least.")
    attention, recurrent = counted_attention(given, width, 1), counted_rnn(given, width)
    if attention != recurrent:
        dearer = "attention" if attention > recurrent else "the recurrent layer"
        raise WrongAnswer(
            "not equal there",
            f"equal_length({width}) is {given}, and at this length {dearer} takes more. Put your two formulas side by "
            "side and strike out what they share: what is left of each?",
        )


def _check_doubling(doubling: Callable[[int, int], Any], length: int, width: int) -> None:
    name = f"doubling({length}, {width})"
    given = expect_number(doubling(length, width), name)
    right = counted_layer(2 * length, width, 1) / counted_layer(length, width, 1)
    if abs(given - right) <= 1e-6:
        return
    if given == 4:
        raise WrongAnswer(
            "everything taken as quadratic",
            f"{name} is 4. That would be so if every part of the layer grew with the square of the length. Divide two "
            "values of your own `layer_flops`: does it come to 4 there?",
        )
    raise WrongAnswer(
        "another ratio",
        f"{name} is {given:.4g}. Count the layer at both lengths with your own `layer_flops`, and divide the longer by "
        "the shorter.",
    )
