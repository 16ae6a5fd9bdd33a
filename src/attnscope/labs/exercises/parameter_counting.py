"""Count the parameters of GPT-2

Count the parameters by formula, without building a model, from one attention layer to the whole model.

- `attention_weights(width, heads, head_width)`: the parameters in the matrices of one attention layer. Each head has
  three matrices, for queries, keys and values, from `width` to `head_width` columns. One more matrix maps the
  concatenated heads back to `width`. `heads * head_width` may differ from `width`.
- `attention_parameters(width, heads, head_width)`: the same with biases, one per output column of each matrix.
- `block_parameters(width)`: a block of GPT-2. Its heads together are as wide as the model, all with biases. After
  attention come two matrices, from `width` to `4 * width` and back, with biases. Before each of these two parts is a
  layer norm, with a gain and a shift per column.
- `model_parameters(vocabulary, context, width, blocks)`: the model. It has an embedding for each token of the
  vocabulary and for each of the `context` positions, the blocks, and a final layer norm. The output layer shares the
  token embeddings.
- `feed_forward_share(vocabulary, context, width, blocks)`: the share of all parameters, between 0 and 1, in the two
  wide matrices of the blocks and their biases.

GPT-2 small has 50,257 tokens, 1,024 positions, a width of 768 in 12 heads, and 12 blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from attnscope.labs.exercise import Answer, WrongAnswer, expect_number

STARTER = '''
def attention_weights(width: int, heads: int, head_width: int) -> int:
    """The numbers in the matrices of one layer of attention."""
    raise NotImplementedError


def attention_parameters(width: int, heads: int, head_width: int) -> int:
    """The same with biases."""
    raise NotImplementedError


def block_parameters(width: int) -> int:
    """Attention, the two wide matrices and two layer norms."""
    raise NotImplementedError


def model_parameters(vocabulary: int, context: int, width: int, blocks: int) -> int:
    """Two tables, the blocks and a last layer norm."""
    raise NotImplementedError


def feed_forward_share(vocabulary: int, context: int, width: int, blocks: int) -> float:
    """Which part of all parameters the wide matrices have, with their biases."""
    raise NotImplementedError
'''

SOLUTION = """
def attention_weights(width, heads, head_width):
    return 4 * width * heads * head_width


def attention_parameters(width, heads, head_width):
    return attention_weights(width, heads, head_width) + 3 * heads * head_width + width


def block_parameters(width):
    return 12 * width**2 + 13 * width


def model_parameters(vocabulary, context, width, blocks):
    return (vocabulary + context) * width + blocks * block_parameters(width) + 2 * width


def feed_forward_share(vocabulary, context, width, blocks):
    return blocks * (8 * width**2 + 5 * width) / model_parameters(vocabulary, context, width, blocks)
"""

HINTS = (
    "Draw each matrix as a rectangle and label its two sides. The number of parameters is the product of the sides; "
    "the bias has one per output column.",
    "Try the smallest case by hand: width 2, one head of width 1. There are three matrices with two numbers each, "
    "and one that maps back. What does your function return? Then two heads: what is there twice, and what only "
    "grows?",
    "For the model, go from the input to the output and write a list: token embeddings, position embeddings, blocks, "
    "norm. There is nothing else. GPT-2 small has about 124 million parameters; if you get 38 million more, one "
    "table is counted twice.",
)

AFTERWARDS = (
    "GPT-2 small has 124,439,808 parameters. In a block, about two thirds are in the wide matrices; in the whole "
    "model, with its large embedding table, less than half."
)

Slips = Mapping[str, tuple[Callable[..., int], str]]
"""Kinds of mistakes: how far each leads astray, for any sizes, and what to say."""


def counted_attention(width: int, heads: int, head_width: int, *, bias: bool) -> int:
    """The parameters of the matrices of attention, counted on layers that hold no memory.

    >>> counted_attention(2, 1, 1, bias=False), counted_attention(2, 1, 1, bias=True)
    (8, 13)
    """
    inner = heads * head_width
    return sum(_linear(width, inner, bias=bias) for _ in range(3)) + _linear(inner, width, bias=bias)


def counted_block(width: int) -> int:
    """The parameters of a block of GPT-2.

    >>> counted_block(2)
    74
    """
    norms = 2 * _count(nn.LayerNorm(width, device="meta"))
    return counted_attention(width, 1, width, bias=True) + counted_feed_forward(width) + norms


def counted_feed_forward(width: int) -> int:
    """The parameters of the two wide matrices of a block.

    >>> counted_feed_forward(2)
    42
    """
    return _linear(width, 4 * width, bias=True) + _linear(4 * width, width, bias=True)


def counted_model(vocabulary: int, context: int, width: int, blocks: int) -> int:
    """The parameters of the whole model.

    >>> counted_model(50_257, 1_024, 768, 12)
    124439808
    """
    tables = _count(nn.Embedding(vocabulary, width, device="meta")) + _count(
        nn.Embedding(context, width, device="meta")
    )
    return tables + blocks * counted_block(width) + _count(nn.LayerNorm(width, device="meta"))


def _linear(inputs: int, outputs: int, *, bias: bool) -> int:
    return _count(nn.Linear(inputs, outputs, bias=bias, device="meta"))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


HEADS = ((768, 12, 64), (2, 1, 1), (6, 2, 5), (10, 3, 2), (512, 8, 128))
WIDTHS = ((768,), (2,), (12_288,), (5,))
MODELS = ((50_257, 1_024, 768, 12), (11, 5, 4, 3), (7, 13, 2, 1), (100, 64, 8, 5))

WEIGHTS: Slips = {
    "the output matrix is missing": (
        lambda width, heads, head_width: -heads * head_width * width,
        "Queries, keys and values are in. What takes the heads, side by side, back to the width of the model?",
    ),
    "every head as wide as the model": (
        lambda width, heads, head_width: (
            3 * heads * width * width + width * width - counted_attention(width, heads, head_width, bias=False)
        ),
        "It seems that each head has square matrices. How many output columns does the matrix of a single head have?",
    ),
    "one head only": (
        lambda width, heads, head_width: (
            counted_attention(width, 1, head_width, bias=False)
            - counted_attention(width, heads, head_width, bias=False)
        ),
        "It does not change with the number of heads as it should. Which matrices does each head have for itself?",
    ),
    "heads taken to fill the width": (
        lambda width, heads, head_width: 4 * width * width - counted_attention(width, heads, head_width, bias=False),
        "It is right where the heads together are as wide as the model. They need not be: which sides of the four "
        "rectangles belong to the heads?",
    ),
    "an output matrix for every head": (
        lambda width, heads, head_width: (heads - 1) * heads * head_width * width,
        "The matrix that leads back is there once, for all heads side by side. Is it in your count once a head?",
    ),
    "biases counted as well": (
        lambda width, heads, head_width: 3 * heads * head_width + width,
        "Here only the numbers in the matrices are asked for. What else is in your count?",
    ),
}

BIASES: Slips = {
    "biases missing": (
        lambda width, heads, head_width: -3 * heads * head_width - width,
        "It is the same as without biases. How many output columns does each matrix have?",
    ),
    "a bias is missing": (
        lambda width, _heads, _head_width: -width,
        "What is missing grows with the width of the model alone. Which of the four matrices has that many columns "
        "coming out?",
    ),
    "all biases as wide as the model": (
        lambda width, heads, head_width: 3 * (width - heads * head_width),
        "It is right where the heads together are as wide as the model. How long is a bias of the queries otherwise?",
    ),
    "biases on the wrong side": (
        lambda width, heads, head_width: 3 * width + heads * head_width - 3 * heads * head_width - width,
        "The biases have the input sizes of the matrices. They are added to the outputs.",
    ),
}

BLOCK: Slips = {
    "layer norms missing": (
        lambda width: -4 * width,
        "What is missing grows with the width, not with its square. What comes before each of the two parts?",
    ),
    "half of the layer norms": (
        lambda width: -2 * width,
        "What is missing is as long as two rows of the model. How many norms are there, and what does each learn?",
    ),
    "biases missing": (
        lambda width: -9 * width,
        "What is missing grows with the width, not with its square. What is added after each matrix?",
    ),
    "a bias of the wide part is wrong": (
        lambda width: -3 * width,
        "Near, but not there; the difference grows with the width. How long is the bias after the first of the wide "
        "matrices, and how long after the second?",
    ),
    "biases and norms missing": (
        lambda width: -13 * width,
        "All matrices are in. What is missing grows with the width, not with its square: what is there besides them?",
    ),
    "one wide matrix": (
        lambda width: -4 * width * width - width,
        "What is missing is as large as one of the wide matrices. There is a way to the greater width, and one back.",
    ),
    "the wide part is missing": (
        lambda width: -counted_feed_forward(width),
        "Attention and the norms are in. What comes after attention?",
    ),
    "not wide enough": (
        lambda width: 2 * _linear(width, width, bias=True) - counted_feed_forward(width),
        "The two matrices after attention seem to be square. How wide is it between them?",
    ),
}

MODEL: Slips = {
    "the token table counted twice": (
        lambda vocabulary, _context, width, _blocks: vocabulary * width,
        "There is something in it as large as a table of tokens that should not be. Does the output have a matrix of "
        "its own?",
    ),
    "positions missing": (
        lambda _vocabulary, context, width, _blocks: -context * width,
        "It does not grow with the context. Where does the model keep what it knows about each position?",
    ),
    "the last norm is missing": (
        lambda _vocabulary, _context, width, _blocks: -2 * width,
        "What is missing does not grow with the number of blocks, and little with the width. What comes after the "
        "last block?",
    ),
    "one block only": (
        lambda _vocabulary, _context, width, blocks: -(blocks - 1) * counted_block(width),
        "It does not grow with the number of blocks.",
    ),
    "tokens missing": (
        lambda vocabulary, _context, width, _blocks: -vocabulary * width,
        "It does not grow with the vocabulary. Where does a token get its row from?",
    ),
}


def check(answer: Answer) -> None:
    """Find the first thing that is wrong with an answer."""
    _compare(
        answer, "attention_weights", lambda *sizes: counted_attention(*sizes, bias=False), HEADS, WEIGHTS, "the weights"
    )
    _compare(
        answer, "attention_parameters", lambda *sizes: counted_attention(*sizes, bias=True), HEADS, BIASES, "attention"
    )
    _compare(answer, "block_parameters", counted_block, WIDTHS, BLOCK, "a block")
    _compare(answer, "model_parameters", counted_model, MODELS, MODEL, "the model")
    _check_share(answer)


def _compare(
    answer: Answer,
    name: str,
    right: Callable[..., int],
    all_sizes: tuple[tuple[int, ...], ...],
    slips: Slips,
    what: str,
) -> None:
    """Compare a function with the count at several sizes; where they differ, say by what kind of mistake."""
    function, gaps = answer.function(name), {}
    for sizes in all_sizes:
        call = f"{name}({', '.join(f'{size:_}' for size in sizes)})"
        given = expect_number(function(*sizes), call)
        if given % 1 != 0:
            raise WrongAnswer(
                "not a whole number", f"{call} is {given}; parameters are counted, so it should be whole."
            )
        gaps[sizes] = given - right(*sizes)
    if not any(gaps.values()):
        return
    first = next(sizes for sizes, gap in gaps.items() if gap)
    said = f"{name}({', '.join(f'{size:_}' for size in first)}) is {round(function(*first)):,}, which is not the count."
    for kind, (slip, words) in slips.items():
        if all(gap == slip(*sizes) for sizes, gap in gaps.items()):
            raise WrongAnswer(kind, f"{said} {words}")
    side = "more" if gaps[first] > 0 else "fewer"
    raise WrongAnswer(
        f"{what} counted wrongly",
        f"{said} There are {side} in it than there are. Make a list of all parts with their shapes, and try the "
        f"smallest sizes by hand: for {', '.join(map(str, min(all_sizes)))} yours says {function(*min(all_sizes))}.",
    )


def _check_share(answer: Answer) -> None:
    function = answer.function("feed_forward_share")
    for sizes in MODELS:
        vocabulary, context, width, blocks = sizes
        call = f"feed_forward_share({', '.join(f'{size:_}' for size in sizes)})"
        given = expect_number(function(*sizes), call)
        part, whole = blocks * counted_feed_forward(width), counted_model(*sizes)
        if abs(given - part / whole) <= 1e-9:
            continue
        outside = (
            "The denominator leaves out something large that is in no block. The task asks for a share of the whole "
            "model."
        )
        for kind, value, words in (
            ("the tables left out", part / (whole - (vocabulary + context) * width), outside),
            ("the blocks alone", part / (blocks * counted_block(width)), outside),
            (
                "one block of many",
                part / blocks / whole,
                "Above the line there seems to be one block. How many are there?",
            ),
            (
                "biases left out",
                part * 8 * width / (8 * width + 5) / whole,
                "The numerator contains the two matrices. What is added to their outputs?",
            ),
        ):
            if abs(given - value) <= 1e-9:
                raise WrongAnswer(kind, f"{call} is {given:.4f}. {words}")
        if given > 1:
            raise WrongAnswer("not a share", f"{call} is {given:.4g}; a share is between 0 and 1.")
        raise WrongAnswer(
            "another share",
            f"{call} is {given:.4f}. Which parameters are in the numerator, and for how many blocks? Which are in the "
            "denominator?",
        )
