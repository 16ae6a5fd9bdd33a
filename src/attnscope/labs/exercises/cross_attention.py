"""Implement cross-attention

In cross-attention the queries come from one sequence and the keys and values from another, the *memory*. Write
`cross_attend(x, memory, w_q, w_k, w_v, is_real)`. It returns a tuple: the output and the attention weights.

- `x` is (batch, n, d) and `memory` is (batch, m, e): the lengths may differ, and so may the dimensions.
- Queries are `x @ w_q`, keys `memory @ w_k`, values `memory @ w_v`. `w_q` is (d, w), `w_k` is (e, w), `w_v` is (e, u).
- Scores are dot products divided by the square root of w. The weights (batch, n, m) are their softmax over the memory.
- `is_real` is None, or a boolean tensor (batch, m) that is False for padding in the memory, which gets a weight of
  exactly 0. Every row of it has at least one True.
- The output is the weighted sum of the values, (batch, n, u).
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_tensor,
    expect_tuple,
    first_mismatch,
    format_index,
    reject_known,
    standard_normal,
)

STARTER = '''
import torch
from torch import Tensor


def cross_attend(
    x: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, is_real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the output (batch, n, u) and the weights (batch, n, m)."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor


def cross_attend(
    x: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, is_real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    queries, keys, values = x @ w_q, memory @ w_k, memory @ w_v
    scores = queries @ keys.mT / w_q.shape[-1] ** 0.5
    if is_real is not None:
        scores = scores.masked_fill(~is_real[:, None, :], -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights @ values, weights
"""

HINTS = (
    "Write down the shape of every product. How many rows and columns do the weights have, and which sequence is along "
    "which?",
    "Everything that is looked up comes from the memory: what it is found by, and what it contributes. "
    "What comes from x?",
    "`is_real` has one entry per key. Which dimension of the scores do keys have, and which new dimension of size 1 "
    "lets the mask apply to all queries?",
)

Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def check(answer: Answer) -> None:
    """Equal sizes, where mistakes can still be told apart; then other sizes, and padding."""
    attend = answer.function("cross_attend")
    for seed, sizes in enumerate(((2, 5, 5, 4, 4, 4, 4), (2, 3, 7, 4, 6, 5, 2), (1, 1, 6, 3, 8, 16, 3))):
        case = _case(*sizes, seed=seed)
        found = _returned(attend(*case), case)
        _compare(found, case, None, f"With x of shape {tuple(case[0].shape)} and memory {tuple(case[1].shape)}")
    case = _case(3, 4, 6, 4, 5, 4, 4, seed=9)
    is_real = torch.arange(6) < torch.tensor([[6], [2], [4]])
    found = _returned(attend(*case, is_real), case)
    _compare(found, case, is_real, "With padding in the memory")


def _case(batch: int, n: int, m: int, d: int, e: int, w: int, u: int, *, seed: int) -> Case:
    shapes = ((batch, n, d), (batch, m, e), (d, w), (e, w), (e, u))
    x, memory, w_q, w_k, w_v = (standard_normal(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes))
    return x, memory, w_q, w_k, w_v


def _returned(value: object, case: Case) -> tuple[Tensor, Tensor]:
    x, memory, _, _, w_v = case
    output, weights = expect_tuple(value, "What `cross_attend` returns", 2)
    expect_tensor(weights, "The weights", (*x.shape[:2], memory.shape[1]))
    return expect_tensor(output, "The output", (*x.shape[:2], w_v.shape[1])), weights


def _weights(x: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, is_real: Tensor | None, scale: float) -> Tensor:
    scores = (x @ w_q).double() @ (memory @ w_k).double().mT * scale
    return (scores if is_real is None else scores.masked_fill(~is_real[:, None, :], -torch.inf)).softmax(-1)


def _compare(found: tuple[Tensor, Tensor], case: Case, is_real: Tensor | None, what: str) -> None:
    x, memory, w_q, w_k, w_v = case
    output, weights = found
    scale = w_q.shape[1] ** -0.5
    expected = _weights(x, memory, w_q, w_k, is_real, scale)
    if is_real is not None and (~is_real[:, None, :] & (weights != 0)).any():
        raise WrongAnswer(
            "padding gets weight",
            f"{what}, {float(weights.masked_fill(is_real[:, None, :], 0).sum()):.4f} of the weight is on padding. At "
            "which step does a key have to be left out so that the other weights still sum to 1?",
        )
    if (place := first_mismatch(weights, expected, 1e-4)) is not None:
        same = x.shape[-1] == memory.shape[-1]
        mistakes = {
            "wrong scale": (_weights(x, memory, w_q, w_k, is_real, 1.0), f"{what}, the scores are not divided."),
            "padding is removed afterwards": (
                _weights(x, memory, w_q, w_k, None, scale).masked_fill(~is_real[:, None, :], 0)
                if is_real is not None
                else torch.empty(0),
                f"{what}, padding has weight 0, but the other weights of a row do not sum to 1 any more.",
            ),
        }
        if same:
            mistakes |= {
                "self-attention": (
                    _weights(x, x, w_q, w_k, is_real, scale),
                    f"{what}, the keys come from x. This is self-attention: what does the memory do?",
                ),
                "the roles are swapped": (
                    _weights(memory, x, w_q, w_k, is_real, scale),
                    f"{what}, the memory asks and x is looked up. Which of the two has the queries?",
                ),
            }
        mistakes["softmax over queries"] = (
            ((x @ w_q).double() @ (memory @ w_k).double().mT * scale).softmax(1),
            f"{what}, the weights of a key sum to 1 over the queries. What has to sum to 1?",
        )
        reject_known(weights, mistakes)
        raise WrongAnswer(
            "wrong weights",
            f"{what}, weight {format_index(place)} is {float(weights[place]):.4f}. Compute one score by hand: one "
            "row of x, one row of the memory.",
        )
    if (place := first_mismatch(output, expected @ (memory @ w_v).double(), 1e-4)) is not None:
        if x.shape == memory.shape:
            reject_known(
                output,
                {
                    "values of the queries": (
                        (expected @ (x @ w_v).double()),
                        f"{what}, the weights are right, and the values come from x instead of the memory.",
                    )
                },
            )
        raise WrongAnswer(
            "wrong sum of values",
            f"{what}, the weights are right, and entry {format_index(place)} of the output is "
            f"{float(output[place]):.4f}: not the weighted sum of the projected memory.",
        )
