"""Implement multi-head attention

A multi-head layer projects its tokens once, and then splits queries, keys and values into equal groups of features:
the first group belongs to head 0, the next to head 1. Each head computes attention. Finally the outputs of all heads
are concatenated and multiplied by a matrix `w_o`.

- `split_heads(x, heads)`: from (batch, n, heads * w) to (batch, heads, n, w).
- `merge_heads(x)`: the inverse, from (batch, heads, n, w) to (batch, n, heads * w).
- `many_heads(x, w_q, w_k, w_v, w_o, heads)`: `x` is (batch, n, d); `w_q`, `w_k`, `w_v` are (d, heads * w), applied as
  `x @ w_q`; `w_o` is (heads * w, d). Scaled dot-product attention in each head, without a mask. Returns (batch, n, d).
- `contributions(x, w_q, w_k, w_v, w_o, heads)`: the term that each head adds to the output, (batch, heads, n, d).
  Summed over heads it is the output of `many_heads`.

`heads * w` may differ from d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope.labs.exercise import Answer, WrongAnswer, expect_tensor, first_mismatch, format_index, standard_normal

STARTER = '''
import torch
from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split (batch, n, heads * w) into (batch, heads, n, w)."""
    raise NotImplementedError


def merge_heads(x: Tensor) -> Tensor:
    """Merge (batch, heads, n, w) into (batch, n, heads * w)."""
    raise NotImplementedError


def many_heads(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    """Return (batch, n, d): attention in each head, merged and multiplied by `w_o`."""
    raise NotImplementedError


def contributions(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    """Return (batch, heads, n, d): the contribution of each head to the output."""
    raise NotImplementedError
'''

SOLUTION = """
import math

import torch
from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    batch, length, features = x.shape
    return x.view(batch, length, heads, features // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * width)


def each_head(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, heads: int) -> Tensor:
    q, k, v = split_heads(x @ w_q, heads), split_heads(x @ w_k, heads), split_heads(x @ w_v, heads)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def many_heads(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    return merge_heads(each_head(x, w_q, w_k, w_v, heads)) @ w_o


def contributions(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    slabs = w_o.reshape(heads, -1, w_o.shape[-1])
    return each_head(x, w_q, w_k, w_v, heads) @ slabs
"""

HINTS = (
    "Number the entries of a small tensor with `torch.arange`, two tokens of four features, and write down where "
    "each has to go for two heads. A reshape alone never changes the order of the numbers: is the order the same?",
    "Splitting takes two steps: the last dimension becomes two, and then dimensions are transposed. Merging takes "
    "the same two steps in reverse. `reshape` works after a transpose, `view` often does not.",
    "For the contributions: rows of `w_o` are multiplied by the features of the merged heads. Which rows belong to "
    "head 1? A matrix product with concatenated blocks is a sum of smaller ones.",
)

AFTERWARDS = (
    "Concatenating heads and multiplying by one matrix, or multiplying each head by its own rows of that matrix and "
    "adding: both are the same. So the contribution of a single head is well defined."
)

Function = Callable[..., Any]


def check(answer: Answer) -> None:
    """Where each number goes; then the whole layer; then what single heads add."""
    for batch, length, heads, width in ((2, 5, 3, 4), (1, 4, 2, 2), (3, 1, 4, 3), (2, 6, 1, 5)):
        _check_split(answer.function("split_heads"), batch, length, heads, width)
        _check_merge(answer.function("merge_heads"), batch, length, heads, width)
    cases = ((2, 6, 10, 3, 4), (1, 3, 8, 2, 4), (2, 5, 8, 8, 1), (3, 4, 6, 1, 6))
    for seed, case in enumerate(cases):
        _check_layer(answer.function("many_heads"), _layer(*case, seed=10 * seed), case[3])
    for seed, case in enumerate(cases):
        _check_contributions(answer, _layer(*case, seed=10 * seed), case[3])


def _numbered(batch: int, length: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Return a tensor whose entries are their positions, and the same tensor split."""
    x = torch.arange(batch * length * heads * width, dtype=torch.float32).reshape(batch, length, heads * width)
    return x, torch.stack(x.split(width, dim=-1), dim=1)


def _check_split(split_heads: Function, batch: int, length: int, heads: int, width: int) -> None:
    x, expected = _numbered(batch, length, heads, width)
    got = expect_tensor(split_heads(x, heads), "What `split_heads` returns", tuple(expected.shape))
    if (place := first_mismatch(got, expected, 0)) is None:
        return
    case = f"Splitting (batch {batch}, {length} tokens, {heads * width} features) into {heads} heads"
    text, token, feature = _origin(x, got[place])
    seen = (
        f"{case}: head {place[1]} of text {place[0]} has at token {place[2]}, feature {place[3]}, what was feature "
        f"{feature} of token {token} of text {text}."
    )
    if (text, token) != (place[0], place[2]):
        raise WrongAnswer(
            "heads not split",
            f"{seen} Another token. The shape is right: did the axes change places, or were the numbers poured into a "
            "new shape in the order in which they lay?",
        )
    raise WrongAnswer(
        "wrong features", f"{seen} The token is right. Which run of features does the task give to that head?"
    )


def _origin(x: Tensor, value: Tensor) -> tuple[int, int, int]:
    text, token, feature = (x == value).nonzero()[0].tolist() if (x == value).any() else (-1, -1, -1)
    return text, token, feature


def _check_merge(merge_heads: Function, batch: int, length: int, heads: int, width: int) -> None:
    expected, x = _numbered(batch, length, heads, width)
    got = expect_tensor(merge_heads(x), "What `merge_heads` returns", tuple(expected.shape))
    if (place := first_mismatch(got, expected, 0)) is None:
        return
    text, token, feature = _origin(expected, got[place])
    raise WrongAnswer(
        "heads not merged",
        f"Merging {heads} heads of {length} tokens and width {width}: token {place[1]} of text {place[0]} has, as its "
        f"feature {place[2]}, feature {feature % width} of head {feature // width} of token {token} of text {text}. "
        "Undo the two steps of the splitting, the last one first.",
    )


def _layer(batch: int, length: int, model_width: int, heads: int, width: int, *, seed: int) -> tuple[Tensor, ...]:
    x = standard_normal(batch, length, model_width, seed=seed)
    projections = [
        standard_normal(model_width, heads * width, seed=seed + place) / math.sqrt(width) for place in (1, 2, 3)
    ]
    return x, *projections, standard_normal(heads * width, model_width, seed=seed + 4)


def _expected(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int, factor: float = 1.0) -> Tensor:
    """What each head adds; `factor` is what a wrong scale multiplies scores by."""
    width = w_q.shape[-1] // heads
    q, k, v = (torch.stack((x.double() @ w.double()).split(width, -1), 1) for w in (w_q, w_k, w_v))
    weights = (q @ k.mT * factor / math.sqrt(width)).softmax(-1)
    return weights @ v @ w_o.double().reshape(heads, width, -1)


def _check_layer(many_heads: Function, layer: tuple[Tensor, ...], heads: int) -> None:
    x, w_q, *_ = layer
    got = expect_tensor(many_heads(*layer, heads), "What `many_heads` returns", tuple(x.shape))
    if first_mismatch(got, _expected(*layer, heads=heads).sum(1), 1e-4) is None:
        return
    case = f"With x of shape {tuple(x.shape)}, projections to {w_q.shape[-1]} features and {heads} heads"
    if not got.isfinite().all():
        raise WrongAnswer("not a finite number", f"{case}, there is a NaN or an infinity in the output.")
    _check_meeting(many_heads, layer, heads, case)
    width = w_q.shape[-1] // heads
    wrong_lengths = {w_q.shape[-1], x.shape[-1], heads, x.shape[-2], 1} - {width}
    factors = [math.sqrt(width / length) for length in wrong_lengths] + [1 / math.sqrt(width)]
    for factor in factors:
        if first_mismatch(got, _expected(*layer, heads=heads, factor=factor).sum(1), 1e-4) is None:
            raise WrongAnswer(
                "wrong scale",
                f"{case}, your scores are right but for one factor that all of them have in common. How many numbers "
                "are multiplied and added up for one score, in one head, and what do you divide by?",
            )
    raise WrongAnswer(
        "wrong output",
        f"{case}, the output is not right: entry (0, 0, 0) is {float(got[0, 0, 0]):.4f}. Splitting and merging are. Go "
        "through what lies in between: queries, scores, weights, outputs of heads. Which matrix makes which of them? "
        "Along which axis is the softmax?",
    )


def _check_meeting(many_heads: Function, layer: tuple[Tensor, ...], heads: int, case: str) -> None:
    """Change one token, then another text, and look who notices."""
    x, *matrices = layer
    first = many_heads(*layer, heads)
    if x.shape[1] > 1:
        other = x.clone()
        other[:, -1] += 1
        if torch.equal(many_heads(other, *matrices, heads)[:, 0], first[:, 0]):
            raise WrongAnswer(
                "tokens do not meet",
                f"{case}: whatever the last token is, the output of the first one stays the same. Between what is the "
                "attention, then? Look at the last two axes of the scores: they should be tokens and tokens.",
            )
    if x.shape[0] > 1:
        other = x.clone()
        other[-1] += 1
        if first_mismatch(many_heads(other, *matrices, heads)[0], first[0], 1e-5) is not None:
            raise WrongAnswer(
                "texts mix",
                f"{case}: if the last text of the batch changes, the output of the first one does too. Where do the "
                "two come together?",
            )


def _check_contributions(answer: Answer, layer: tuple[Tensor, ...], heads: int) -> None:
    x, w_q, *_ = layer
    case = f"With x of shape {tuple(x.shape)}, projections to {w_q.shape[-1]} features and {heads} heads"
    shape = (x.shape[0], heads, *x.shape[1:])
    got = expect_tensor(answer.function("contributions")(*layer, heads), "What `contributions` returns", shape)
    expected = _expected(*layer, heads=heads)
    if heads > 1 and first_mismatch(got, expected.sum(1, keepdim=True) - expected, 1e-4) is None:
        raise WrongAnswer(
            "the output without the head",
            f"{case}: what you say that head 0 adds is what all others add together. To leave a head out shows what is "
            "left; the task asks what it had added.",
        )
    if (place := first_mismatch(got.double().sum(1), expected.sum(1), 1e-4)) is not None:
        raise WrongAnswer(
            "they do not add up",
            f"{case}: summed over the heads, entry {format_index(place)} is {float(got.sum(1)[place]):.4f}, and "
            f"`many_heads` says {float(answer.function('many_heads')(*layer, heads)[place]):.4f}. Which part of `w_o` "
            "does the output of a head meet?",
        )
    if (place := first_mismatch(got, expected, 1e-4)) is not None:
        raise WrongAnswer(
            "wrong share of the output",
            f"{case}: the sum is right, and yet head {place[1]} adds something else than you say. If the values of one "
            "head were 0, what would it add, and do your numbers say so?",
        )
