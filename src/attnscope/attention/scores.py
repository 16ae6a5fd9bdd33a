"""Score modifiers: changes of the attention scores between scale * q.k and the softmax.

`Softcap`, `Temperature`, `ALiBi`, `Bias` and `Sinks` combine with `+` and apply from left to right: `Softcap(50) +
ALiBi(8)` caps the products and then subtracts the slopes. The mask comes after all of them, with -inf. `Sinks` are not
scores of keys but an extra term in the denominator of the softmax. They apply last wherever they are written, and
temperatures do not change them.

Each step computes the scores of any cells, given their row and column indices, and its own derivative, so backends can
work block by block. Nothing here depends on masks or backends. Memory: the caller's tensors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.algebra import Sizes, check_broadcast
from attnscope.attention.transfers import to_device
from attnscope.errors import ShapeError


class Cells(NamedTuple):
    """The positions of some scores: index tensors that broadcast to S, for scores (batch, heads, *S)."""

    query: Tensor
    key: Tensor
    sizes: Sizes
    batch: slice = slice(None)

    def distance(self, offset: int | None) -> Tensor:
        """Return key position minus query position; without an offset the queries are the last of the keys."""
        return self.key - self.query - (self.sizes.keys - self.sizes.queries if offset is None else offset)


class ScoreMod(ABC):
    """A change of the attention scores, or a chain of changes; combine them with `+`, the first one applies first."""

    @property
    @abstractmethod
    def parts(self) -> tuple[ScoreStep | Sinks, ...]:
        """The single modifiers, in order."""

    def __add__(self, other: ScoreMod) -> ScoreMod:
        if not isinstance(other, ScoreMod):
            raise TypeError(f"expected a score modifier, got {type(other).__name__}; wrap a tensor with Bias(tensor)")
        return ScoreChain((*self.parts, *other.parts))


@dataclass(frozen=True)
class ScoreChain(ScoreMod):
    """Several score modifiers, applied in order."""

    parts: tuple[ScoreStep | Sinks, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


def chain_scores(parts: Iterable[ScoreMod]) -> ScoreMod | None:
    """Return the score modifiers as one; None if there are none."""
    single = tuple(part for score in parts for part in score.parts)
    return ScoreChain(single) if len(single) > 1 else next(iter(single), None)


class ScoreStep(ScoreMod):
    """One elementwise change of the scores."""

    @property
    def parameter(self) -> Tensor | None:
        """The tensor that may need a gradient."""
        return None

    @property
    def parts(self) -> tuple[ScoreStep, ...]:
        return (self,)

    @abstractmethod
    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        """Return the changed scores of these cells."""

    def backward(self, grad_output: Tensor, output: Tensor, cells: Cells, grad_param: Tensor | None) -> Tensor:
        """Return the gradient of the scores, and add that of the parameter to `grad_param`.

        Args:
            grad_output: The gradient of the changed scores.
            output: The changed scores, from `apply`.
            cells: The cells of these scores.
            grad_param: The sum of the parameter's gradients, changed in place; None if it needs none.
        """
        return grad_output

    def narrow(self, batch: slice, heads: slice | list[int]) -> ScoreStep:
        """Return the step of these batch rows and heads."""
        return self

    def check(self, sizes: Sizes) -> None:
        """Raise ShapeError if the step does not fit an attention matrix of this shape."""
        return  # some steps have none


@dataclass(frozen=True)
class Softcap(ScoreStep):
    """cap * tanh(score / cap): scores saturate at +-cap (Gemma 2).

    Args:
        cap: The largest absolute score, a positive number.
    """

    cap: float

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise ValueError(f"Softcap: expected a positive cap, got {self.cap}")

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return torch.tanh(scores / self.cap) * self.cap

    def backward(self, grad_output: Tensor, output: Tensor, cells: Cells, grad_param: Tensor | None) -> Tensor:
        return grad_output * (1 - (output / self.cap).square())


@dataclass(frozen=True)
class Temperature(ScoreStep):
    """Scores divided by a temperature: above 1 the weights become flatter, below 1 sharper.

    Args:
        value: The temperature, a positive number.
    """

    value: float

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"Temperature: expected a positive temperature, got {self.value}")

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return scores / self.value

    def backward(self, grad_output: Tensor, output: Tensor, cells: Cells, grad_param: Tensor | None) -> Tensor:
        return grad_output / self.value


@dataclass(frozen=True, init=False, eq=False)
class ALiBi(ScoreStep):
    """Attention with linear biases: subtracts slope times the distance between query and key (arXiv 2108.12409).

    Args:
        slopes: One slope per head, (heads,), or a number of heads for the published slopes.
        offset: The position of the first query; by default the queries are the last of the keys.
    """

    slopes: Tensor
    offset: int | None

    def __init__(self, slopes: Tensor | Sequence[float] | int, *, offset: int | None = None) -> None:
        given = alibi_slopes(int(slopes)) if isinstance(slopes, Integral) else torch.as_tensor(slopes)
        object.__setattr__(self, "slopes", given)
        object.__setattr__(self, "offset", offset)

    @property
    def parameter(self) -> Tensor:
        return self.slopes

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        slopes = to_device(self.slopes, scores.device, scores.dtype)
        return scores - slopes.reshape(-1, *(1,) * (scores.dim() - 2)) * self._distance(scores, cells)

    def backward(self, grad_output: Tensor, output: Tensor, cells: Cells, grad_param: Tensor | None) -> Tensor:
        if grad_param is not None:
            grad_param -= (grad_output * self._distance(grad_output, cells)).transpose(0, 1).flatten(1).sum(1)
        return grad_output

    def narrow(self, batch: slice, heads: slice | list[int]) -> ALiBi:
        return ALiBi(self.slopes[heads], offset=self.offset)

    def check(self, sizes: Sizes) -> None:
        if tuple(self.slopes.shape) != (sizes.heads,):
            raise ShapeError(
                f"ALiBi: expected slopes of shape ({sizes.heads},), one per head, got {tuple(self.slopes.shape)}"
            )

    def _distance(self, like: Tensor, cells: Cells) -> Tensor:
        return cells.distance(self.offset).abs().to(like.dtype)

    def __repr__(self) -> str:
        return f"ALiBi({len(self.slopes)} slopes)"


def alibi_slopes(heads: int) -> Tensor:
    """Return the slopes of the ALiBi paper (arXiv 2108.12409): powers of 2^(-8/n) for n heads.

    If n is not a power of two: those of the next lower power, then every second slope of twice as many heads.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    if heads < 1:
        raise ValueError(f"ALiBi: expected at least one head, got {heads}")
    whole = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2.0 ** (-4 * (i + 1) / whole) for i in range(0, 2 * (heads - whole), 2)]
    return torch.tensor(slopes)


@dataclass(frozen=True, eq=False)
class Bias(ScoreStep):
    """Additive bias: a tensor that is added to the scores.

    Args:
        values: Numbers that broadcast to (batch, heads, queries, keys).
    """

    values: Tensor

    def __post_init__(self) -> None:
        if not self.values.is_floating_point() or self.values.dim() < 2:
            raise ShapeError(
                "Bias: expected floating-point numbers that broadcast to (batch, heads, queries, keys), got "
                f"{tuple(self.values.shape)} {self.values.dtype}; "
                "make booleans a mask with from_bool(attend=...) or from_bool(drop=...)"
            )

    @property
    def parameter(self) -> Tensor:
        return self.values

    @staticmethod
    def t5(table: Tensor, *, bidirectional: bool, max_distance: int = 128, offset: int | None = None) -> ScoreStep:
        """Return the relative position bias of T5, in O(n) memory.

        Args:
            table: The bias of each bucket of distances, (buckets, heads).
            bidirectional: Whether half of the buckets are for keys after the query, as in encoders.
            max_distance: The distance from which on all keys share the last bucket.
            offset: The position of the first query; by default the queries are the last of the keys.
        """
        return T5Bias(table, bidirectional, max_distance, offset)

    @staticmethod
    def by_distance(values: Tensor, *, first: int, offset: int | None = None) -> DistanceBias:
        """Return a bias (heads, distances) by distance, key minus query position; column 0 is distance `first`.

        Args:
            values: The bias of each distance, (heads, distances).
            first: The distance of column 0.
            offset: The position of the first query among the keys; by default, the last query has the last key.

        Returns:
            The bias, which takes O(n) memory.
        """
        return DistanceBias(values, first, offset)

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        table = self._to_4d()
        if table.requires_grad and torch.is_grad_enabled():  # the index sums gradients in the dtype of its input
            table = to_device(table, scores.device, scores.dtype)
        block = table[self._index(cells)]  # not the whole table
        return scores + to_device(block, scores.device, scores.dtype)

    def backward(self, grad_output: Tensor, output: Tensor, cells: Cells, grad_param: Tensor | None) -> Tensor:
        if grad_param is not None:
            full = grad_param[(None,) * (4 - grad_param.dim())]
            batch, heads, row, column = self._index(cells)
            view = full[batch, heads]
            flat = view.flatten(2)
            target = (row * full.shape[-1] + column).flatten()
            reduced = grad_output.sum_to_size(*view.shape[:2], *grad_output.shape[2:]).flatten(2)
            flat.index_add_(2, target, reduced.to(flat))
        return grad_output

    def narrow(self, batch: slice, heads: slice | list[int]) -> Bias:
        table = self._to_4d()
        return Bias(table[batch if table.shape[0] > 1 else slice(None), heads if table.shape[1] > 1 else slice(None)])

    def check(self, sizes: Sizes) -> None:
        check_broadcast("Bias", self.values.shape, sizes)

    def _to_4d(self) -> Tensor:
        return self.values[(None,) * (4 - self.values.dim())]

    def _index(self, cells: Cells) -> tuple[slice, slice, Tensor, Tensor]:
        batch, _, rows, columns = self._to_4d().shape
        query, key = torch.broadcast_tensors(*(one.to(self.values.device) for one in (cells.query, cells.key)))
        return (
            cells.batch if batch > 1 else slice(None),
            slice(None),
            query if rows > 1 else torch.zeros_like(query),
            key if columns > 1 else torch.zeros_like(key),
        )

    def __repr__(self) -> str:
        return f"Bias{tuple(self.values.shape)}"


@dataclass(frozen=True, eq=False)
class T5Bias(ScoreStep):
    """A (buckets, heads) table, indexed by the bucket of the distance between query and key."""

    table: Tensor
    bidirectional: bool
    max_distance: int
    offset: int | None

    def __post_init__(self) -> None:
        if self.table.dim() != 2:
            raise ShapeError(f"Bias.t5: expected a table (buckets, heads), got {tuple(self.table.shape)}")
        side = self.table.shape[0] // 2 if self.bidirectional else self.table.shape[0]
        if side < 2 or self.max_distance <= side // 2:
            raise ShapeError(
                f"Bias.t5: expected at least {4 if self.bidirectional else 2} buckets and a max_distance above those "
                f"of single distances, got {self.table.shape[0]} buckets and max_distance={self.max_distance}"
            )

    @property
    def parameter(self) -> Tensor:
        return self.table

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return scores + to_device(self.table, scores.device, scores.dtype)[self._buckets(cells)].movedim(-1, 0)

    def backward(self, grad_output: Tensor, output: Tensor, cells: Cells, grad_param: Tensor | None) -> Tensor:
        if grad_param is not None:
            by_cell = grad_output.sum(0).flatten(1)
            grad_param.index_add_(0, self._buckets(cells).flatten(), by_cell.mT.to(grad_param.dtype))
        return grad_output

    def narrow(self, batch: slice, heads: slice | list[int]) -> T5Bias:
        return T5Bias(self.table[:, heads], self.bidirectional, self.max_distance, self.offset)

    def check(self, sizes: Sizes) -> None:
        if self.table.dim() != 2 or self.table.shape[1] != sizes.heads:
            raise ShapeError(f"Bias.t5: expected a table (buckets, {sizes.heads}), got {tuple(self.table.shape)}")

    def _buckets(self, cells: Cells) -> Tensor:
        return relative_buckets(cells.distance(self.offset), self.table.shape[0], self.bidirectional, self.max_distance)

    def __repr__(self) -> str:
        return f"Bias.t5({self.table.shape[0]} buckets)"


@dataclass(frozen=True, eq=False)
class DistanceBias(ScoreStep):
    """A (heads, distances) table, indexed by the distance between query and key; it must contain all distances."""

    values: Tensor
    first: int
    offset: int | None = None

    @property
    def parameter(self) -> Tensor:
        return self.values

    def apply(self, scores: Tensor, cells: Cells) -> Tensor:
        return scores + to_device(self.values, scores.device, scores.dtype)[:, self._index(cells)]

    def backward(self, grad_output: Tensor, output: Tensor, cells: Cells, grad_param: Tensor | None) -> Tensor:
        if grad_param is not None:
            by_cell = grad_output.sum(0).flatten(1)
            grad_param.index_add_(1, self._index(cells).flatten(), by_cell.to(grad_param.dtype))
        return grad_output

    def narrow(self, batch: slice, heads: slice | list[int]) -> DistanceBias:
        return DistanceBias(self.values[heads], self.first, self.offset)

    def check(self, sizes: Sizes) -> None:
        offset = sizes.keys - sizes.queries if self.offset is None else self.offset
        lowest, highest = 1 - sizes.queries - offset, sizes.keys - 1 - offset
        if self.values.dim() != 2 or self.values.shape[0] != sizes.heads:
            raise ShapeError(f"{self}: expected values ({sizes.heads}, distances), got {tuple(self.values.shape)}")
        if self.first > lowest or self.first + self.values.shape[1] <= highest:
            raise ShapeError(f"{self}: expected all distances from {lowest} to {highest}")

    def _index(self, cells: Cells) -> Tensor:
        distance = cells.distance(self.offset)
        return (distance - self.first).expand(torch.broadcast_shapes(cells.query.shape, cells.key.shape))

    def __repr__(self) -> str:
        return f"Bias.by_distance({self.first} to {self.first + self.values.shape[1] - 1})"


def relative_buckets(distance: Tensor, buckets: int, bidirectional: bool, max_distance: int) -> Tensor:
    """Return T5's bucket of each distance, key minus query: exact if small, logarithmic if large (arXiv 1910.10683).

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
class Sinks(ScoreMod):
    """Attention sinks: one logit per head in the denominator of the softmax, without a value (gpt-oss).

    Args:
        logits: One logit per head, (heads,).
    """

    logits: Tensor

    @property
    def parts(self) -> tuple[Sinks]:
        return (self,)

    def check(self, sizes: Sizes) -> None:
        """Raise ShapeError unless there is one logit per head."""
        if tuple(self.logits.shape) != (sizes.heads,):
            raise ShapeError(
                f"Sinks: expected logits of shape ({sizes.heads},), one per head, got {tuple(self.logits.shape)}"
            )

    def narrow(self, heads: slice | list[int]) -> Sinks:
        """Return the sinks of these heads."""
        return Sinks(self.logits[heads])

    def apply(self, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and lse with the sinks in the denominator; a row without keys stays 0 and -inf."""
        empty = lse == -math.inf
        lse = lse.masked_fill(empty, 0.0)  # keeps -inf out of the gradient
        sinks = to_device(self.logits, lse.device, lse.dtype)[:, None]
        share = torch.sigmoid(lse - sinks)[..., None].masked_fill(empty[..., None], 0.0)
        return (output * share).to(output.dtype), torch.logaddexp(lse, sinks).masked_fill(empty, -math.inf)

    def __repr__(self) -> str:
        return f"Sinks({self.logits.numel()} logits)"


class ScoreParts(NamedTuple):
    """A score modifier as a factor of the scale, the remaining steps, and the sinks."""

    factor: float
    steps: tuple[ScoreStep, ...]
    sinks: Sinks | None


def split_score_mod(score_mod: ScoreMod | None) -> ScoreParts:
    """Split a score modifier: leading temperatures become part of the scale, and sinks come last."""
    parts = () if score_mod is None else score_mod.parts
    sinks = [part for part in parts if isinstance(part, Sinks)]
    if len(sinks) > 1:
        raise ValueError(f"{score_mod}: expected at most one Sinks, got {len(sinks)}")
    steps = [part for part in parts if isinstance(part, ScoreStep)]
    leading = list(takewhile(lambda step: isinstance(step, Temperature), steps))
    factor = 1.0 / math.prod([step.value for step in leading if isinstance(step, Temperature)])
    return ScoreParts(factor, tuple(steps[len(leading) :]), sinks[0] if sinks else None)
