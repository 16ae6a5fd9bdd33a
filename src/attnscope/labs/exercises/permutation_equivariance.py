"""Test layers for permutation equivariance

A layer takes `x` of shape `(length, width)`, one row per token. Permute the rows, `x[order]`, and compare the
outputs. A layer is **equivariant** if its output is permuted in the same way and otherwise unchanged. It is
**invariant** if its output does not change at all. An equivariant layer cannot distinguish anagrams: each token gets
the same output row, wherever it is.

Write three functions. A `layer` is any function from `(length, width)` to a tensor; `order` contains every number from
0 to `length - 1` once, and is in general not its own inverse. Results are rounded, and sums in another order are
rounded differently: differences by rounding do not count.

- `is_equivariant(layer, x, order)`: whether the layer is equivariant for this input and order. It is only called for
  layers that return as many rows as they get.
- `is_invariant(layer, x, order)`: whether the layer is invariant for this input and order. The output may have any
  shape.
- `counterexample(layer, length, width)`: an `x` of shape `(length, width)` and an `order` for which the layer is not
  equivariant, or `None` if you find none. One of the layers adds a position embedding to each row; find out for which
  orders this shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope.labs.exercise import Answer, WrongAnswer, expect_bool, expect_tensor, expect_tuple

STARTER = '''
from collections.abc import Callable

import torch
from torch import Tensor

Layer = Callable[[Tensor], Tensor]


def is_equivariant(layer: Layer, x: Tensor, order: Tensor) -> bool:
    """Whether the output follows the rows of x into their new order."""
    raise NotImplementedError


def is_invariant(layer: Layer, x: Tensor, order: Tensor) -> bool:
    """Whether the output stays as it is when the rows of x change their order."""
    raise NotImplementedError


def counterexample(layer: Layer, length: int, width: int) -> tuple[Tensor, Tensor] | None:
    """An input (length, width) and an order (length,) that show that the layer is not equivariant, or None."""
    raise NotImplementedError
'''

SOLUTION = """
import torch


def is_equivariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x)[order], rtol=1e-4, atol=1e-5)


def is_invariant(layer, x, order):
    return torch.allclose(layer(x[order]), layer(x), rtol=1e-4, atol=1e-5)


def counterexample(layer, length, width):
    for _ in range(100):
        x, order = torch.randn(length, width), torch.randperm(length)
        if not is_equivariant(layer, x, order):
            return x, order
    return None
"""

HINTS = (
    "There are two paths: permute and then apply the layer, or apply the layer and then permute. Which two tensors "
    "should be equal if the layer is equivariant? And which if it is invariant?",
    "An order such as 1, 2, 0 returns to the start only after three applications. Write down where each row of "
    "`x[order]` comes from, and do exactly the same to the output. No order has to be inverted.",
    "For the counterexample: a single order may not be enough. Reversing leaves the middle row in place, and a "
    "symmetric position embedding does not notice it. Equal rows show nothing either. Try many random orders on "
    "random rows before you return None.",
)

AFTERWARDS = (
    "So attention alone reads a bag of tokens; a causal mask or position embeddings change that. One layer was both "
    "equivariant and invariant: if all rows are equal, no permutation changes them."
)

Layer = Callable[[Tensor], Tensor]
SMALLEST = 1e-4
"""Layers here that are not equivariant miss it by more than this, and rounding by far less."""


class _Watched:
    """A layer that remembers what it was given."""

    def __init__(self, layer: Layer):
        self.layer, self.seen = layer, []

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.layer(x)


def _doubled(x: Tensor) -> Tensor:
    return 2 * x


def _attention(x: Tensor, *, is_causal: bool = False) -> Tensor:
    maker = torch.Generator().manual_seed(7)
    width = x.shape[1]
    q, k, v = (x @ torch.randn(width, width, generator=maker, dtype=x.dtype) / width**0.5 for _ in range(3))
    scores = q @ k.mT / width**0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ v


def _causal(x: Tensor) -> Tensor:
    return _attention(x, is_causal=True)


def _with_positions(code: Callable[[Tensor], Tensor]) -> Layer:
    """Attention that adds to each row a code of its place; `code` makes it from the numbers 0 to length - 1."""

    def layer(x: Tensor) -> Tensor:
        return _attention(x + code(torch.arange(len(x), dtype=x.dtype))[:, None])

    return layer


def _averaged(x: Tensor) -> Tensor:
    return x.mean(0)


def _averaged_everywhere(x: Tensor) -> Tensor:
    return x.mean(0, keepdim=True).expand_as(x)


def _sorted(x: Tensor) -> Tensor:
    return x[x[:, 0].argsort()]


def check(answer: Answer) -> None:
    """Find the first thing that is wrong with an answer."""
    _check_equivariance(answer)
    _check_invariance(answer)
    _check_counterexamples(answer)


def _drawn(length: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Random rows, and an order that no second application undoes."""
    maker = torch.Generator().manual_seed(seed)
    x = torch.randn(length, width, generator=maker, dtype=dtype)
    order = torch.arange(length)
    while torch.equal(order[order], torch.arange(length)):
        order = torch.randperm(length, generator=maker)
    return x, order


def _check_equivariance(answer: Answer) -> None:
    function = answer.function("is_equivariant")

    def says(layer: Layer, x: Tensor, order: Tensor) -> bool:
        return expect_bool(function(layer, x, order), "is_equivariant")

    x, order = _drawn(5, 6, seed=1)
    watched = _Watched(_doubled)
    if not says(watched, x, order):
        _explain_doubled(says, watched, x, order)
    if says(_sorted, x, order):
        raise WrongAnswer(
            "invariance taken for equivariance",
            "`is_equivariant` says yes of a layer that sorts its rows. Its output is the same for every order of the "
            "input, so it does not follow the rows. Which two outputs do you compare, and does the order play a part "
            "in both?",
        )
    for length, width, seed, dtype in ((64, 48, 2, torch.float32), (40, 8, 3, torch.float64), (3, 2, 4, torch.float32)):
        x, order = _drawn(length, width, seed, dtype)
        if not says(_attention, x, order):
            off = (_attention(x[order]) - _attention(x)[order]).abs().max().item()
            raise WrongAnswer(
                "rounding taken for a difference",
                f"`is_equivariant` says no of attention on {length} tokens in {dtype}. Going both ways, the "
                f"outputs differ by {off:.1g} at most, where single entries are around 1. Could that be more than "
                "rounding? How do you compare?",
            )
    _check_layers_that_see_order(says)


def _explain_doubled(
    says: Callable[[Layer, Tensor, Tensor], bool], watched: _Watched, x: Tensor, order: Tensor
) -> None:
    """A layer that doubles each row was said not to be equivariant: find out what was compared."""
    case = f"`is_equivariant` returns False for a layer that doubles each number of x, with order {order.tolist()}."
    if any(seen.shape == x[:, order].shape and torch.equal(seen, x[:, order]) for seen in watched.seen):
        words = f"{case} The layer was given x with its columns in another order; tokens are rows."
        raise WrongAnswer("columns moved instead of rows", words)
    if says(_sorted, x, order):
        raise WrongAnswer(
            "invariance taken for equivariance",
            f"{case} But it returns True for a layer that sorts its rows, whose output never changes. To be the same "
            "for every order is another property, for which there is another function. What should happen to the "
            "output?",
        )
    swap = torch.tensor([1, 0, 2, 3, 4])
    if says(_doubled, x, swap):
        raise WrongAnswer(
            "the order is applied the wrong way",
            f"{case} With the order {swap.tolist()}, which is its own inverse, it returns True. So an order is applied "
            "twice, or undone, where it should not be. Follow one row by hand: where does it go on each side?",
        )
    raise WrongAnswer("every layer is refused", f"{case} Where does each row go? Is that where the other side has it?")


def _check_layers_that_see_order(says: Callable[[Layer, Tensor, Tensor], bool]) -> None:
    x, order = _drawn(6, 4, seed=5)
    for what, layer in {
        "attention that adds to each row the number of its place": _with_positions(lambda place: place),
        "attention that adds a hundredth of the number of its place": _with_positions(lambda place: place / 100),
        "causal attention, where a row sees only rows before it": _causal,
    }.items():
        if says(layer, x, order):
            off = (layer(x[order]) - layer(x)[order]).abs().max().item()
            raise WrongAnswer(
                "a difference is overlooked",
                f"`is_equivariant` says yes of {what}, with order {order.tolist()}. Going both ways, entries differ by "
                f"up to {off:.2g}, which is far more than rounding. Is every entry compared, each with the one in its "
                "own place, and how far may they be apart?",
            )
    if not says(_averaged_everywhere, x, order):
        raise WrongAnswer(
            "one excludes the other",
            "`is_equivariant` says no of a layer that gives the average of all rows in every row. That layer is "
            "invariant; does this keep its output from following the order as well?",
        )


def _check_invariance(answer: Answer) -> None:
    function = answer.function("is_invariant")

    def says(layer: Layer, x: Tensor, order: Tensor) -> bool:
        return expect_bool(function(layer, x, order), "is_invariant")

    x, order = _drawn(33, 6, seed=6)
    if says(_doubled, x, order) or says(_attention, x, order):
        raise WrongAnswer(
            "equivariance taken for invariance",
            "`is_invariant` says yes of a layer whose rows change places when those of the input do (one that doubles "
            "them, or attention). The output as a whole is then another one. Should the order play any part after the "
            "layer?",
        )
    for what, layer in {
        "one that sorts its rows": _sorted,
        "the average of all rows, of shape (width,)": _averaged,
        "the average of all rows in every row": _averaged_everywhere,
        "the sum of all numbers": torch.sum,
    }.items():
        if not says(layer, x, order):
            off = (layer(x[order]) - layer(x)).abs().max().item()
            raise WrongAnswer(
                "an invariant layer is refused",
                f"`is_invariant` says no of a layer that is: {what}. Its outputs for both orders differ by {off:.1g} "
                "at most. What do you compare, and how closely?",
            )
    if says(lambda x: x[0] / 100, x, order):
        raise WrongAnswer(
            "a difference is overlooked",
            "`is_invariant` says yes of a layer that gives a hundredth of its first row, with an order that puts "
            f"another row first ({order.tolist()}). How far may two entries be apart and still pass for the same?",
        )


def _check_counterexamples(answer: Answer) -> None:
    function = answer.function("counterexample")
    length, width = 6, 4
    for what, layer in {"attention": _attention, "the average of all rows in every row": _averaged_everywhere}.items():
        found = function(layer, length, width)
        if found is not None:
            _check_order(found, length, width)
            raise WrongAnswer(
                "a counterexample where there is none",
                f"`counterexample` returns something for {what}, which is equivariant for every input and every order. "
                "Does your function try its find before it returns it?",
            )
    for what, layer in {
        "attention with the number of its place added to each row": _with_positions(lambda place: place),
        "causal attention": _causal,
        "attention with a code that is the same from both ends": _with_positions(lambda place: (place - 2.5).abs()),
        "attention with a code that is 0 everywhere but in the last place": _with_positions(
            lambda place: (place == length - 1).to(place.dtype)
        ),
        "attention with a code that repeats after two places": _with_positions(lambda place: place % 2),
    }.items():
        found = function(layer, length, width)
        if found is None:
            raise WrongAnswer(
                "a counterexample is missed",
                f"`counterexample` finds none for {what}. There are many: which inputs and which orders did you try? "
                "Could they all be of a kind that this layer is blind to?",
            )
        x, order = _check_order(found, length, width)
        off = (layer(x[order]) - layer(x)[order]).abs().max().item()
        if not off > SMALLEST:
            raise WrongAnswer(
                "not a counterexample",
                f"For {what}, your input and the order {order.tolist()} do not show it: going both ways, the outputs "
                f"differ by {off:.1g} at most. Does your function try its find before it returns it?",
            )


def _check_order(found: Any, length: int, width: int) -> tuple[Tensor, Tensor]:
    """The input and the order of a counterexample, if that is what they are."""
    x, order = expect_tuple(found, "The counterexample", 2)
    x = expect_tensor(x, "The input of the counterexample", (length, width))
    order = expect_tensor(order, "The order of the counterexample", (length,))
    if order.is_floating_point() or sorted(order.tolist()) != list(range(length)):
        raise WrongAnswer(
            "not an order",
            f"The order of the counterexample is {order.tolist()}; it should hold each whole number from 0 to "
            f"{length - 1} once. With a row twice and another left out, it is another text and not an anagram.",
        )
    if not x.is_floating_point() or not x.isfinite().all():
        raise WrongAnswer(
            "not an input", f"The input of the counterexample, {x.dtype}, should hold finite decimal numbers."
        )
    return x, order
