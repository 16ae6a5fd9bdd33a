"""What happens to scores between scale * q.k and the softmax.

`Softcap`, `Temperature`, `ALiBi`, `Bias` and `Sinks` combine with `+`, applied from left to right: `Softcap(50) +
ALiBi(8)` caps the products and then adds the slopes. The mask comes after all of them, with -inf. `Sinks` are no
score of a key but an extra term of the softmax's denominator, so they come last wherever they are written, and no
temperature touches them.

Each step works on the scores of any cells, given their row and column indices, and knows its own derivative, so
engines can walk over blocks. Nothing here knows of masks or engines. Memory: what the caller gave.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.algebra import Sizes, check_broadcast
from attnscope.errors import ShapeError


class Cells(NamedTuple):
    """Where in the matrix some scores belong: index tensors that broadcast to S, for scores (batch, heads, *S)."""

    query: Tensor
    key: Tensor
    sizes: Sizes
    batch: slice = slice(None)

    def distance(self, offset: int | None) -> Tensor:
        """Key position minus query position; without an offset the queries are the last of the keys."""
        return self.key - self.query - (self.sizes.keys - self.sizes.queries if offset is None else offset)


class Score(ABC):
    """A change of scores, or several in a row; combined with `+` in the order applied."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Step | Sinks, ...]:
        """The single changes, in order."""

    def __add__(self, other: Score) -> Score:
        if not isinstance(other, Score):
            raise TypeError(f"scores combine with scores, got {type(other).__name__}; wrap a tensor with Bias(tensor)")
        return Chain((*self.parts, *other.parts))


@dataclass(frozen=True)
class Chain(Score):
    """Several score modifiers, applied in order."""

    parts: tuple[Step | Sinks, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


def chained(parts: Iterable[Score]) -> Score | None:
    """Scores one after the other; None where there is none."""
    single = tuple(part for score in parts for part in score.parts)
    return Chain(single) if len(single) > 1 else next(iter(single), None)


class Step(Score):
    """One change of the scores themselves."""

    @property
    def parameter(self) -> Tensor | None:
        """The tensor that may want a gradient."""
        return None

    @property
    def parts(self) -> tuple[Step, ...]:
        return (self,)

    @abstractmethod
    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        """The changed scores of these cells."""

    def pull(self, gradient: Tensor, changed: Tensor, cells: Cells, into: Tensor | None) -> Tensor:
        """The gradient before the change, which a sum passes on; that of the parameter is added to `into`."""
        return gradient

    def narrow(self, batch: slice, heads: slice | list[int]) -> Step:
        """The step of these batch rows and heads alone."""
        return self

    def check(self, sizes: Sizes) -> None:
        """Raise ShapeError if the step's own tensors do not fit this matrix."""
        return  # some steps have none


@dataclass(frozen=True)
class Softcap(Step):
    """cap * tanh(score / cap): scores saturate at +-cap (Gemma 2)."""

    cap: float

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise ValueError(f"Softcap({self.cap}): the cap is a positive number")

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return torch.tanh(scores / self.cap) * self.cap

    def pull(self, gradient: Tensor, changed: Tensor, cells: Cells, into: Tensor | None) -> Tensor:
        return gradient * (1 - (changed / self.cap).square())


@dataclass(frozen=True)
class Temperature(Step):
    """Scores divided by a number: above 1 flattens the weights, below 1 sharpens them."""

    value: float

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"Temperature({self.value}): the temperature is a positive number")

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return scores / self.value

    def pull(self, gradient: Tensor, changed: Tensor, cells: Cells, into: Tensor | None) -> Tensor:
        return gradient / self.value


@dataclass(frozen=True, init=False, eq=False)
class ALiBi(Step):
    """Minus slope * distance between query and key, one slope a head; a number of heads gives the published slopes."""

    slopes: Tensor
    offset: int | None

    def __init__(self, slopes: Tensor | int, *, offset: int | None = None) -> None:
        object.__setattr__(self, "slopes", alibi_slopes(slopes) if isinstance(slopes, int) else slopes)
        object.__setattr__(self, "offset", offset)

    @property
    def parameter(self) -> Tensor:
        return self.slopes

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        slopes = self.slopes.to(scores)
        return scores - slopes.reshape(-1, *(1,) * (scores.dim() - 2)) * self._distance(scores, cells)

    def pull(self, gradient: Tensor, changed: Tensor, cells: Cells, into: Tensor | None) -> Tensor:
        if into is not None:
            into -= (gradient * self._distance(gradient, cells)).transpose(0, 1).flatten(1).sum(1)
        return gradient

    def narrow(self, batch: slice, heads: slice | list[int]) -> ALiBi:
        return ALiBi(self.slopes[heads], offset=self.offset)

    def check(self, sizes: Sizes) -> None:
        if tuple(self.slopes.shape) != (sizes.heads,):
            raise ShapeError(f"ALiBi: wants one slope for each of {sizes.heads} heads, got {tuple(self.slopes.shape)}")

    def _distance(self, like: Tensor, cells: Cells) -> Tensor:
        return cells.distance(self.offset).abs().to(like.dtype)

    def __repr__(self) -> str:
        return f"ALiBi({len(self.slopes)} slopes)"


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of the ALiBi paper (arXiv 2108.12409): powers of 2^(-8/n) for n heads.

    Where n is no power of two: those of the next one down, then every second slope of twice as many heads.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    if heads < 1:
        raise ValueError(f"ALiBi({heads}): wants at least one head")
    whole = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2.0 ** (-4 * (i + 1) / whole) for i in range(0, 2 * (heads - whole), 2)]
    return torch.tensor(slopes)


@dataclass(frozen=True, eq=False)
class Bias(Step):
    """A tensor added to the scores; broadcasts to (batch, heads, queries, keys)."""

    values: Tensor

    def __post_init__(self) -> None:
        if not self.values.is_floating_point() or self.values.dim() < 2:
            raise ShapeError(
                f"Bias: wants numbers that broadcast to (batch, heads, queries, keys), got {tuple(self.values.shape)} "
                f"{self.values.dtype}; booleans are a mask: from_bool(attend=...) or from_bool(drop=...)"
            )

    @property
    def parameter(self) -> Tensor:
        return self.values

    @staticmethod
    def t5(table: Tensor, *, bidirectional: bool, max_distance: int = 128, offset: int | None = None) -> Step:
        """T5's relative bias from its (buckets, heads) table, in O(n) memory."""
        return RelativeBias(table, bidirectional, max_distance, offset)

    @staticmethod
    def by_distance(values: Tensor, *, first: int, offset: int | None = None) -> DistanceBias:
        """One number for each head and distance (key minus query position), (heads, distances), from `first` on."""
        return DistanceBias(values, first, offset)

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return scores + self._four().to(scores)[self._where(cells)]  # sums of gradients keep their precision

    def pull(self, gradient: Tensor, changed: Tensor, cells: Cells, into: Tensor | None) -> Tensor:
        if into is not None:
            full = into[(None,) * (4 - into.dim())]
            batch, heads, row, column = self._where(cells)
            view = full[batch, heads]
            flat = view.flatten(2)
            target = (row * full.shape[-1] + column).flatten()
            reduced = gradient.sum_to_size(*view.shape[:2], *gradient.shape[2:]).flatten(2)
            flat.index_add_(2, target, reduced)
        return gradient

    def narrow(self, batch: slice, heads: slice | list[int]) -> Bias:
        table = self._four()
        return Bias(table[batch if table.shape[0] > 1 else slice(None), heads if table.shape[1] > 1 else slice(None)])

    def check(self, sizes: Sizes) -> None:
        check_broadcast("Bias", self.values.shape, sizes)

    def _four(self) -> Tensor:
        return self.values[(None,) * (4 - self.values.dim())]

    def _where(self, cells: Cells) -> tuple[slice, slice, Tensor, Tensor]:
        batch, _, rows, columns = self._four().shape
        query, key = torch.broadcast_tensors(cells.query, cells.key)
        return (
            cells.batch if batch > 1 else slice(None),
            slice(None),
            query if rows > 1 else torch.zeros_like(query),
            key if columns > 1 else torch.zeros_like(key),
        )

    def __repr__(self) -> str:
        return f"Bias{tuple(self.values.shape)}"


@dataclass(frozen=True, eq=False)
class RelativeBias(Step):
    """A (buckets, heads) table read by the bucket of the distance between query and key."""

    table: Tensor
    bidirectional: bool
    max_distance: int
    offset: int | None

    @property
    def parameter(self) -> Tensor:
        return self.table

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return scores + self.table.to(scores)[self._buckets(cells)].movedim(-1, 0)

    def pull(self, gradient: Tensor, changed: Tensor, cells: Cells, into: Tensor | None) -> Tensor:
        if into is not None:
            by_cell = gradient.sum(0).flatten(1)
            into.index_add_(0, self._buckets(cells).flatten(), by_cell.mT.to(into.dtype))
        return gradient

    def narrow(self, batch: slice, heads: slice | list[int]) -> RelativeBias:
        return RelativeBias(self.table[:, heads], self.bidirectional, self.max_distance, self.offset)

    def check(self, sizes: Sizes) -> None:
        if self.table.dim() != 2 or self.table.shape[1] != sizes.heads:
            raise ShapeError(f"Bias.t5: wants a (buckets, {sizes.heads} heads) table, got {tuple(self.table.shape)}")

    def _buckets(self, cells: Cells) -> Tensor:
        return relative_buckets(cells.distance(self.offset), self.table.shape[0], self.bidirectional, self.max_distance)

    def __repr__(self) -> str:
        return f"Bias.t5({self.table.shape[0]} buckets)"


@dataclass(frozen=True, eq=False)
class DistanceBias(Step):
    """A (heads, distances) table read by the distance between query and key; it must hold all that are asked for."""

    values: Tensor
    first: int
    offset: int | None = None

    @property
    def parameter(self) -> Tensor:
        return self.values

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return scores + self.values.to(scores)[:, self._where(cells)]

    def pull(self, gradient: Tensor, changed: Tensor, cells: Cells, into: Tensor | None) -> Tensor:
        if into is not None:
            into.index_add_(1, self._where(cells).flatten(), gradient.sum(0).flatten(1).to(into.dtype))
        return gradient

    def narrow(self, batch: slice, heads: slice | list[int]) -> DistanceBias:
        return DistanceBias(self.values[heads], self.first, self.offset)

    def check(self, sizes: Sizes) -> None:
        offset = sizes.keys - sizes.queries if self.offset is None else self.offset
        lowest, highest = 1 - sizes.queries - offset, sizes.keys - 1 - offset
        if self.values.dim() != 2 or self.values.shape[0] != sizes.heads:
            raise ShapeError(f"{self}: wants ({sizes.heads} heads, distances), got {tuple(self.values.shape)}")
        if self.first > lowest or self.first + self.values.shape[1] <= highest:
            raise ShapeError(f"{self}: this attention has distances from {lowest} to {highest}")

    def _where(self, cells: Cells) -> Tensor:
        distance = cells.distance(self.offset)
        return (distance - self.first).expand(torch.broadcast_shapes(cells.query.shape, cells.key.shape))

    def __repr__(self) -> str:
        return f"Bias.by_distance({self.first} to {self.first + self.values.shape[1] - 1})"


def relative_buckets(distance: Tensor, buckets: int, bidirectional: bool, max_distance: int) -> Tensor:
    """T5's bucket of each distance (key minus query): exact when near, logarithmic when far (arXiv 1910.10683).

    >>> relative_buckets(torch.tensor([0, -1, -20, -500, 3]), 32, bidirectional=False, max_distance=128).tolist()
    [0, 1, 17, 31, 0]
    """
    side = buckets // 2 if bidirectional else buckets
    far = distance.abs() if bidirectional else (-distance).clamp(min=0)
    exact = side // 2
    ratio = torch.log(far.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    logarithmic = (exact + (ratio * (side - exact)).to(torch.long)).clamp(max=side - 1)
    bucket = torch.where(far < exact, far, logarithmic)
    return bucket + side * (distance > 0) if bidirectional else bucket


@dataclass(frozen=True, eq=False)
class Sinks(Score):
    """One logit a head that takes part in the softmax's denominator and carries no value (gpt-oss)."""

    logits: Tensor

    @property
    def parts(self) -> tuple[Sinks]:
        return (self,)

    def check(self, sizes: Sizes) -> None:
        """Raise ShapeError unless there is one logit a head."""
        if tuple(self.logits.shape) != (sizes.heads,):
            raise ShapeError(f"Sinks: wants one logit for each of {sizes.heads} heads, got {tuple(self.logits.shape)}")

    def narrow(self, heads: slice | list[int]) -> Sinks:
        """The sinks of these heads alone."""
        return Sinks(self.logits[heads])

    def absorb(self, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Output and lse once the sinks have taken their share; a row without keys stays 0 and -inf."""
        empty = lse == -math.inf
        lse = lse.masked_fill(empty, 0.0)  # keeps -inf out of the gradient
        sinks = self.logits.to(lse)[:, None]
        share = torch.sigmoid(lse - sinks)[..., None].masked_fill(empty[..., None], 0.0)
        return (output * share).to(output.dtype), torch.logaddexp(lse, sinks).masked_fill(empty, -math.inf)

    def __repr__(self) -> str:
        return f"Sinks({self.logits.numel()} logits)"


class Plain(NamedTuple):
    """A score taken apart: a factor on the scale, the steps that remain, and the sinks."""

    factor: float
    steps: tuple[Step, ...]
    sinks: Sinks | None


def take_apart(score: Score | None) -> Plain:
    """Fold leading temperatures into the scale, and put the sinks last."""
    parts = () if score is None else score.parts
    sinks = [part for part in parts if isinstance(part, Sinks)]
    if len(sinks) > 1:
        raise ValueError(f"{score}: a row has one denominator, so give one Sinks, not {len(sinks)}")
    steps = [part for part in parts if isinstance(part, Step)]
    leading = list(takewhile(lambda step: isinstance(step, Temperature), steps))
    factor = 1.0 / math.prod([step.value for step in leading if isinstance(step, Temperature)])
    return Plain(factor, tuple(steps[len(leading) :]), sinks[0] if sinks else None)
