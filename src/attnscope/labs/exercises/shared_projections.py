"""Analyse heads with shared projections

Suppose that all heads use the same `w_q`, `w_k` and `w_v`, each of shape (d, w). Their outputs are concatenated as
usual, (n, heads * w), and multiplied by `w_o` of shape (heads * w, d). What can such a layer compute?

- `as_one_head(w_q, w_k, w_v, w_o, heads)`: four matrices of a single head that computes exactly the same: `softmax(x @
  w_q @ (x @ w_k).T / sqrt(u)) @ (x @ w_v) @ w_o`, where u is the dimension of the queries that you return.
- `largest_rank(d, w, heads, shared)`: the largest rank that the output (n, d) of the layer can have for a long
  sequence: with shared projections, and with separate projections for each head.
- `gradient_of_w_o(head, upstream, heads)`: `head` (n, w) is the output of each head, and `upstream` (n, d) is the
  gradient of a loss with respect to the output of the layer. Return the gradient of `w_o`, (heads * w, d), without
  autograd. What does it say about how the heads learn?

A textbook says that the layer is equivalent to a single head that is `heads` times as wide. Check this.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_number,
    expect_tensor,
    expect_tuple,
    first_mismatch,
    format_index,
    standard_normal,
)

STARTER = '''
import torch
from torch import Tensor


def as_one_head(
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the matrices w_q, w_k, w_v and w_o of a single head that computes the same."""
    raise NotImplementedError


def largest_rank(d: int, w: int, heads: int, shared: bool) -> int:
    """Return the largest rank of the output of the layer, for a long sequence."""
    raise NotImplementedError


def gradient_of_w_o(head: Tensor, upstream: Tensor, heads: int) -> Tensor:
    """Return (heads * w, d): the gradient of w_o if all heads have the output `head`."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor


def as_one_head(
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    slabs = w_o.reshape(heads, -1, w_o.shape[-1])
    return w_q, w_k, w_v, slabs.sum(dim=0)


def largest_rank(d: int, w: int, heads: int, shared: bool) -> int:
    return min(d, w if shared else heads * w)


def gradient_of_w_o(head: Tensor, upstream: Tensor, heads: int) -> Tensor:
    side_by_side = torch.cat([head] * heads, dim=-1)
    return side_by_side.T @ upstream
"""

HINTS = (
    "Write down the output of two such heads: the same matrix H twice, concatenated, times `w_o`. Split `w_o` into "
    "the rows for the first H and those for the second. What can be factored out?",
    "The output is H times something. How many independent columns can H have, and do copies add any? Separate heads "
    "have more columns; and the output has only d itself.",
    "For a product A @ B, the gradient of B is the transpose of A times the upstream gradient. Here A is H, "
    "concatenated with itself: what are its transposed rows?",
)

AFTERWARDS = (
    "So the copies are one head of their own dimension: its scores have rank w, and so has its output. A wider head "
    "can do more, whatever the textbook says. Training cannot separate the copies: all blocks of `w_o` get the same "
    "gradient."
)

CASES = ((10, 3, 4), (8, 2, 2), (6, 6, 3), (12, 3, 4), (10, 4, 1))
"""Width of the model, width of a head, heads."""


def check(answer: Answer) -> None:
    """The single head, the rank, and the gradient, against autograd."""
    for seed, (width, head_width, heads) in enumerate(CASES):
        _check_one_head(answer, width, head_width, heads, 10 * seed)
    for width, head_width, heads in (*CASES, (96, 8, 12), (96, 8, 16), (16, 32, 2), (100, 7, 5)):
        _check_rank(answer, width, head_width, heads)
    for seed, (width, head_width, heads) in enumerate(CASES):
        _check_gradient(answer, width, head_width, heads, 10 * seed)


def _head(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(w_q.shape[-1])
    return scores.softmax(-1) @ (x @ w_v)


def _matrices(width: int, head_width: int, heads: int, seed: int) -> tuple[Tensor, ...]:
    shapes = ((width, head_width),) * 3 + ((heads * head_width, width),)
    return tuple(
        standard_normal(*shape, seed=seed + place, dtype=torch.float64) / 2 for place, shape in enumerate(shapes)
    )


def _check_one_head(answer: Answer, width: int, head_width: int, heads: int, seed: int) -> None:
    given = _matrices(width, head_width, heads, seed)
    returned = expect_tuple(answer.function("as_one_head")(*given, heads), "What `as_one_head` returns", 4)
    w_q, w_k, w_v, w_o = _fitting(returned, width)
    case = f"d = {width}, w = {head_width} and {heads} heads"
    x = standard_normal(9, width, seed=seed + 7, dtype=torch.float64)
    expected = torch.cat([_head(x, *given[:3])] * heads, dim=-1) @ given[3]
    got = _head(x, w_q, w_k, w_v) @ w_o
    if (place := first_mismatch(got, expected, 1e-6)) is None:
        return
    numbers = f"output {format_index(place)} is {float(got[place]):.4f}, and the shared heads make another number of it"
    right_pattern = first_mismatch(_head(x, w_q, w_k, torch.eye(width).double()), _pattern(x, given), 1e-6) is None
    if w_q.shape[-1] > head_width and not right_pattern:
        raise WrongAnswer(
            "a wider head is another one",
            f"With {case} your single head has queries of width {w_q.shape[-1]}, and {numbers}: its weights are others "
            "already. What do more features, or copies of them, do to a score, and to the root that it is divided by?",
        )
    if not right_pattern:
        raise WrongAnswer(
            "other weights",
            f"With {case} {numbers}. Its weights are others already. All heads make the same weights: which "
            "projections make these?",
        )
    slabs = given[3].reshape(heads, head_width, width)
    if w_o.shape == slabs[0].shape and any(first_mismatch(w_o, slab, 1e-6) is None for slab in slabs):
        raise WrongAnswer(
            "one part of w_o only",
            f"With {case} {numbers}. You keep one part of `w_o`, and drop what the others made of the same head "
            "output.",
        )
    if w_o.shape == slabs[0].shape and first_mismatch(w_o, slabs.mean(0), 1e-6) is None:
        raise WrongAnswer(
            "a mean of the parts", f"With {case} {numbers}. Do the heads share the output, or does each add to it?"
        )
    raise WrongAnswer(
        "not the same output",
        f"With {case} {numbers}. The weights are right, so look at `w_o`: which of its rows meet which copy of the "
        "head?",
    )


def _pattern(x: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    return _head(x, given[0], given[1], torch.eye(x.shape[-1], dtype=x.dtype))


def _fitting(returned: tuple[Any, ...], width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four matrices, if one head can be made of them."""
    names = ("w_q", "w_k", "w_v", "w_o")
    for name, value in zip(names, returned, strict=True):
        if not isinstance(value, Tensor) or value.dim() != 2:
            raise WrongAnswer("not a tensor", f"`{name}` should be a matrix; it is {type(value).__name__}.")
    w_q, w_k, w_v, w_o = (value.detach().double() for value in returned)
    shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in zip(names, returned, strict=True))
    inner = w_q.shape == w_k.shape and w_v.shape[1] == w_o.shape[0]
    if not inner or not w_q.shape[0] == w_v.shape[0] == w_o.shape[1] == width:
        raise WrongAnswer("wrong shape", f"These four make no head for a model of width {width}: {shapes}.")
    return w_q, w_k, w_v, w_o


def _check_rank(answer: Answer, width: int, head_width: int, heads: int) -> None:
    for shared in (True, False):
        call = f"largest_rank({width}, {head_width}, {heads}, {shared})"
        got = expect_number(answer.function("largest_rank")(width, head_width, heads, shared), f"`{call}`")
        if got % 1 != 0:
            raise WrongAnswer("not a whole number", f"`{call}` is {got}; a rank is a whole number.")
        if got == min(width, head_width if shared else heads * head_width):
            continue
        if got > width:
            raise WrongAnswer(
                "more than there is room for",
                f"`{call}` is {got}. The output has {width} columns: can more than these be independent?",
            )
        if shared and got > head_width:
            raise WrongAnswer(
                "copies add no rank",
                f"`{call}` is {got}. How many columns of the heads, side by side, are not copies of others?",
            )
        if not shared and got == min(width, head_width):
            raise WrongAnswer(
                "separate heads do add rank",
                f"`{call}` is {got}, as if the heads were copies here too. Their outputs are other columns now.",
            )
        raise WrongAnswer(
            "wrong rank",
            f"`{call}` is {got}. Count the columns of the heads, side by side, that can be independent, and those that "
            "the output has.",
        )


def _check_gradient(answer: Answer, width: int, head_width: int, heads: int, seed: int) -> None:
    head = standard_normal(9, head_width, seed=seed, dtype=torch.float64)
    upstream = standard_normal(9, width, seed=seed + 1, dtype=torch.float64)
    shape = (heads * head_width, width)
    got = answer.function("gradient_of_w_o")(head, upstream, heads)
    got = expect_tensor(got, "What `gradient_of_w_o` returns", shape, head.dtype).detach()
    w_o = torch.zeros(shape, dtype=head.dtype, requires_grad=True)
    (expected,) = torch.autograd.grad(((torch.cat([head] * heads, dim=-1) @ w_o) * upstream).sum(), w_o)
    if (place := first_mismatch(got, expected, 1e-8)) is None:
        return
    case = f"With d = {width}, w = {head_width} and {heads} heads"
    parts = got.reshape(heads, head_width, width)
    if first_mismatch(parts, parts[:1].expand_as(parts), 1e-8) is not None:
        raise WrongAnswer(
            "heads that differ",
            f"{case} the parts of your gradient differ from head to head. All heads have the same output, and the same "
            "comes from above: what could tell them apart? In which order do copies stand side by side?",
        )
    if heads > 1 and first_mismatch(got * heads, expected, 1e-8) is None:
        raise WrongAnswer(
            "the gradient is shared out",
            f"{case} each part gets a share of a gradient. In a sum, does a term feel less because there are others?",
        )
    raise WrongAnswer(
        "wrong gradient",
        f"{case} entry {format_index(place)} is {float(got[place]):.4f}. Change that entry of `w_o` a little: which "
        "tokens' outputs change, by how much, and what comes from above for each of them?",
    )
