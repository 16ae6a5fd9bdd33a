"""Implement linear attention

Softmax attention weights a value by the exponential of a score. Let the weight be `phi(q) · phi(k)` instead, where
`phi` is a feature map that is applied to each row. The output of a query is then the weighted sum of the values,
divided by the sum of the weights. Because a weight is now a plain product, no n x n matrix is needed.

- `feature_map(x)`: rows of shape `(..., length, width)` to rows `(..., length, features)`; you choose the number of
  features. Each row is mapped independently. The resulting weights must be positive for all rows, including zeros, and
  must not all be equal. It need not approximate a softmax.
- `linear_attention(q, k, v)`: the outputs, `(..., queries, value_width)`, with the weights of your feature map. The
  numbers of keys and queries may differ, and so may the width of values. No scale, no mask.
- `causal_linear_attention(q, k, v)`: the same if query `i` uses only keys 0 to `i`. There are as many keys as queries.

Twice the tokens should take about twice the work in both, and no tensor may have an entry per pair of tokens. Loops
over tokens are allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attnscope.labs.exercise import Answer, WrongAnswer, expect_tensor, first_mismatch, standard_normal

STARTER = '''
import torch
from torch import Tensor


def feature_map(x: Tensor) -> Tensor:
    """(..., length, width) to (..., length, features), each row for itself; any two products are positive."""
    raise NotImplementedError


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mean of the values under the weights phi(q) . phi(k), without a square of weights."""
    raise NotImplementedError


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, where a query uses no key that comes after it."""
    raise NotImplementedError
'''

SOLUTION = """
import torch.nn.functional as F


def feature_map(x):
    return F.elu(x) + 1


def linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    above = q @ (k.mT @ v)
    below = q @ k.sum(-2).unsqueeze(-1)
    return above / below


def causal_linear_attention(q, k, v):
    q, k = feature_map(q), feature_map(k)
    memory = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(-3)
    above = (q.unsqueeze(-2) @ memory).squeeze(-2)
    below = (q * k.cumsum(-2)).sum(-1, keepdim=True)
    return above / below
"""

HINTS = (
    "A product of three matrices can be bracketed in two ways. Write down the shapes of both: in which is the "
    "intermediate result independent of the number of tokens?",
    "The sum of the weights is a weighted sum too, of values that are all 1. So the same computation gives numerator "
    "and denominator.",
    "For the causal version, iterate over the tokens and keep a state that summarises all keys and values so far; "
    "its size is constant. Must the key of a token be added before or after its query is applied? Cumulative sums do "
    "the same without a loop.",
)

AFTERWARDS = (
    "Your state is a matrix that is written by outer products and read by queries: a memory of fixed size. This is "
    "why such a layer can generate at a constant cost per token, and why it forgets."
)

LENGTH = 384
"""Sequence length when work is counted; dimensions are small in comparison."""
TOLERANCE = 1e-4


class _Work(TorchDispatchMode):
    """Counts the numbers that operations touch, and keeps the size of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.touched, self.largest = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.largest = max(self.largest, *_sizes(made), 0)
            self.touched += max((*_sizes(made), *_sizes(args)), default=0)
        return made


def _sizes(values: Any) -> list[int]:
    """How many numbers each tensor among some values has, also inside of lists."""
    if isinstance(values, Tensor):
        return [values.numel()]
    return [size for value in values for size in _sizes(value)] if isinstance(values, tuple | list) else []


def check(answer: Answer) -> None:
    """Find the first thing that is wrong with an answer."""
    mapped, attend, attend_causally = (
        answer.function(name) for name in ("feature_map", "linear_attention", "causal_linear_attention")
    )
    _check_feature_map(mapped)
    for seed, (queries, keys, width, value_width, leading) in enumerate(
        ((5, 5, 4, 4, ()), (3, 7, 4, 6, (2, 3)), (9, 2, 8, 1, (1,)), (1, 1, 3, 5, ()))
    ):
        q = standard_normal(*leading, queries, width, seed=3 * seed)
        k, v = (
            standard_normal(*leading, keys, width, seed=3 * seed + 1),
            standard_normal(*leading, keys, value_width, seed=3 * seed + 2),
        )
        _check_output("linear_attention", attend, mapped, (q, k, v), is_causal=False)
    _check_output("linear_attention", attend, mapped, _drawn(torch.float64), is_causal=False)
    _check_cost("linear_attention", attend)
    for seed, (length, width, value_width, leading) in enumerate(((5, 4, 4, ()), (6, 3, 7, (2, 3)), (1, 2, 2, (1,)))):
        shapes = (width, width, value_width)
        q, k, v = (
            standard_normal(*leading, length, columns, seed=9 + 3 * seed + n) for n, columns in enumerate(shapes)
        )
        _check_future(attend_causally, (q, k, v))
        _check_output("causal_linear_attention", attend_causally, mapped, (q, k, v), is_causal=True)
    _check_output("causal_linear_attention", attend_causally, mapped, _drawn(torch.float64), is_causal=True)
    _check_cost("causal_linear_attention", attend_causally)


def _drawn(dtype: torch.dtype = torch.float32, length: int = 17) -> tuple[Tensor, Tensor, Tensor]:
    q, k = standard_normal(length, 4, seed=41, dtype=dtype), standard_normal(length, 4, seed=42, dtype=dtype)
    return q, k, standard_normal(length, 3, seed=43, dtype=dtype)


def _features(mapped: Callable[[Tensor], Any], x: Tensor, rows: str) -> Tensor:
    """What the feature map makes of some rows, if it is rows again."""
    made = mapped(x)
    if isinstance(made, Tensor) and made.shape[:-1] != x.shape[:-1]:
        raise WrongAnswer(
            "wrong shape",
            f"The feature map makes shape {tuple(made.shape)} of {rows} of shape {tuple(x.shape)}. Only the last "
            "dimension may change.",
        )
    columns = made.shape[-1] if isinstance(made, Tensor) and made.ndim else 0
    return expect_tensor(made, f"What the feature map makes of {rows}", (*x.shape[:-1], columns), x.dtype)


def _check_feature_map(mapped: Callable[[Tensor], Any]) -> None:
    x = standard_normal(2, 9, 4, seed=1)
    if first_mismatch(_features(mapped, x, "random rows"), _features(mapped, x, "random rows"), 0.0):
        raise WrongAnswer(
            "another map each time",
            "The same rows, mapped twice, have different features. Queries and keys go through the map one after the "
            "other and must meet the same one: are there random numbers in it?",
        )
    if first_mismatch(_features(mapped, x, "random rows")[:, :3], _features(mapped, x[:, :3], "some rows"), 1e-5):
        raise WrongAnswer(
            "the feature map mixes tokens",
            "The features of the first three rows change when there are more rows after them. Along which dimension "
            "does your map work? In a causal layer it would let the future in.",
        )
    rows = {
        "random rows": x[0],
        "rows of negative numbers": -x[0].abs() - 1,
        "rows of zeros": torch.zeros(2, 4),
        "large rows": 4 * x[1],
    }
    features = {name: _features(mapped, value, name) for name, value in rows.items()}
    for name, queries in features.items():
        for other, keys in features.items():
            weights = queries @ keys.mT
            if not weights.isfinite().all():
                raise WrongAnswer(
                    "infinite weights", f"Queries that are {name} and keys that are {other}: NaN or infinity."
                )
            if (weights < 0).any():
                raise WrongAnswer(
                    "negative weights",
                    f"With queries that are {name} and keys that are {other}, a weight is {weights.min().item():.3g}. "
                    "A sum of such weights may come near to 0, and dividing by it blows up. Which functions are never "
                    "negative?",
                )
            if (weights.sum(-1) == 0).any():
                row = int((weights.sum(-1) == 0).nonzero()[0])
                raise WrongAnswer(
                    "no weight left",
                    f"The query {_list(rows[name][row])} has the features {_list(queries[row])}. It gives each of the "
                    f"{len(keys)} keys, {other}, the weight 0; the sum of its weights is 0, and 0 / 0 is NaN.",
                )
    weights = features["random rows"] @ features["random rows"].mT
    if (weights.std(-1) <= 1e-4 * weights.mean(-1)).all():
        raise WrongAnswer(
            "every key alike", "All keys get the same weight from each query: that is a plain mean of values."
        )


def _list(values: Tensor) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in values.tolist()) + ")"


def _weights(mapped: Callable[[Tensor], Any], q: Tensor, k: Tensor, *, is_causal: bool) -> Tensor:
    """The square of weights, which answers are not to build."""
    weights = mapped(q.double()).double() @ mapped(k.double()).double().mT
    return weights.tril() if is_causal else weights


def _check_output(
    name: str,
    attend: Callable[..., Any],
    mapped: Callable[[Tensor], Any],
    given: tuple[Tensor, Tensor, Tensor],
    *,
    is_causal: bool,
) -> None:
    q, k, v = given
    where = f"`{name}` for {q.shape[-2]} queries, {k.shape[-2]} keys and values of width {v.shape[-1]}"
    output = expect_tensor(attend(q, k, v), f"The output of {where}", (*q.shape[:-1], v.shape[-1]), v.dtype)
    if not output.isfinite().all():
        row = tuple((~output.isfinite()).nonzero()[0].tolist())
        raise WrongAnswer(
            "NaN in a row",
            f"In {where}, entry {row} is {output[row].item()}. Which keys does this query have, and what is the sum of "
            "its weights?",
        )
    weights = _weights(mapped, q, k, is_causal=is_causal)
    sums, total = weights @ v.double(), weights.sum(-1, keepdim=True)
    if (found := first_mismatch(output, sums / total, TOLERANCE)) is None:
        return
    if first_mismatch(output / sums.abs().max(), sums / sums.abs().max(), TOLERANCE) is None:
        words = f"In {where}, the weighted sums are right. A mean takes one step more, for each query its own."
        raise WrongAnswer("sums instead of means", words)
    ones = expect_tensor(attend(q, k, torch.ones_like(v)), "The output for values of 1", output.shape)
    far = (ones - 1).abs()
    if not far.max() <= TOLERANCE:
        off = tuple((far == far.max()).nonzero()[0].tolist())
        raise WrongAnswer(
            "weights do not sum to 1",
            f"In {where}, with values that are all 1, entry {off} is {ones[off].item():.4g}. A mean of ones is 1. By "
            "what is it divided, and is it the sum of exactly those weights that are used above the line?",
        )
    raise WrongAnswer(
        "other weights",
        f"In {where}, entry {found} is {output[found].item():.4g}, which is not the mean under phi(q) . phi(k) "
        "with your own `feature_map`. The weights do sum to 1. Do both queries and keys go through the map, once, and "
        "is the weight that product and nothing else?",
    )


def _check_future(attend: Callable[..., Any], given: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = given
    kept = q.shape[-2] // 2
    later = [torch.cat([x[..., :kept, :], x[..., kept:, :].flip(-1) + 1], -2) for x in given]
    shape = (*q.shape[:-1], v.shape[-1])
    before = expect_tensor(attend(q, k, v), "The output of `causal_linear_attention`", shape, v.dtype)
    after = expect_tensor(attend(*later), "The output of `causal_linear_attention`", shape, v.dtype)
    both_finite = before.isfinite() & after.isfinite()
    found = first_mismatch(
        after.where(both_finite, 0)[..., :kept, :], before.where(both_finite, 0)[..., :kept, :], TOLERANCE
    )
    if found is not None:
        raise WrongAnswer(
            "the future leaks",
            f"When only tokens from {kept} on are changed, the output at {found[-2]} changes from "
            f"{before[found].item():.4g} to {after[found].item():.4g}. Which sum still contains all keys: that of the "
            "values, that of the weights, or both?",
        )


def _check_cost(name: str, attend: Callable[..., Any]) -> None:
    work = []
    for length in (LENGTH, 2 * LENGTH):
        q, k, v = (x[None, None] for x in _drawn(length=length))
        with torch.no_grad(), FlopCounterMode(display=False) as flops, _Work() as counted:
            attend(q, k, v)
        if counted.largest >= length * length:
            raise WrongAnswer(
                "a square is built",
                f"For {length} tokens `{name}` makes a tensor of {counted.largest:,} numbers: that is one for every "
                "pair of tokens. Which two things do you multiply first?",
            )
        work.append(counted.touched + flops.get_total_flops())
    if work[1] > 3 * work[0]:
        raise WrongAnswer(
            "quadratic after all",
            f"No square is built, yet `{name}` touches {work[0]:,} numbers for {LENGTH} tokens and {work[1]:,} for "
            "twice as many. What is computed, or copied, anew for each token although the token before had most of it?",
        )
