"""One attention as a model asked for it: what any way of watching a model hands to the recorder.

In: tensors (batch, head, position, dim) and what stands between them. Out: the same for some heads alone, and as copies
that nobody else writes to. Does not know: models, names, where the call was seen. Memory: O(n).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.scores import Score, Sinks, chained
from attnscope.matrix import AttentionMatrix

APART = 2**18  # bytes of a copy that is worth a mapping of its own

T = TypeVar("T")


class Whole(Protocol):
    """A mask that is known for all of a text, not only for the rows and columns of one call."""

    def over(self, rows: range, columns: range) -> Mask:
        """The mask of these positions."""
        ...

    def agrees_with(self, other: Whole) -> bool:
        """Whether both say the same about what both know."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """Query (batch, heads, queries, dim) and key (batch, key heads, keys, dim), and the rule between them.

    `row` and `column` are the positions of the first query and the first key in their texts: with a cache, a call
    brings the last rows of a matrix. `cross` says whether the keys are of another text, if the place it was seen at
    knows. `whole` knows the mask of other rows and columns, too, where something does. `heads` are the numbers that
    these heads have in their model, where they are not all of them.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    mask: Mask
    scale: float | None
    score: Score | None = None
    row: int = 0
    column: int = 0
    cross: bool | None = None
    whole: Whole | None = None
    lse: Tensor | None = None
    heads: tuple[int, ...] | None = None

    @property
    def rows(self) -> range:
        """The positions of the queries."""
        return range(self.row, self.row + self.query.shape[2])

    @property
    def columns(self) -> range:
        """The positions of the keys."""
        return range(self.column, self.column + self.key.shape[2])

    def matrix(self) -> AttentionMatrix:
        """Its weights, with leading (batch, head)."""
        return AttentionMatrix(
            self.query, self.key, mask=self.mask, scale=self.scale, score=self.score, value=self.value, lse=self.lse
        )


def with_heads(call: Call, heads: Sequence[int]) -> Call:
    """The call of some query heads alone, each with a key head of its own."""
    group = call.query.shape[1] // call.key.shape[1]
    chosen, key_heads, everything = list(heads), [head // group for head in heads], slice(None)
    return replace(
        call,
        query=call.query[:, chosen],
        heads=tuple(chosen),
        key=call.key[:, key_heads],
        value=None if call.value is None else call.value[:, key_heads],
        lse=None if call.lse is None else call.lse[:, chosen],
        mask=call.mask.narrow(everything, chosen),
        score=None if call.score is None else _score_of(call.score, chosen),
    )


def _score_of(score: Score, heads: list[int]) -> Score | None:
    parts = (part.narrow(heads) if isinstance(part, Sinks) else part.narrow(slice(None), heads) for part in score.parts)
    return chained(parts)


def owned(call: Call, dtype: torch.dtype | None, *, values: bool) -> Call:
    """The call with tensors of its own, in a dtype for storage: models write to caches, buffers and parameters later.

    In another dtype the normalisers would no longer be those of the stored query and key, and are left out.
    """
    kept = call.query.dtype if dtype is None else dtype
    return replace(
        call,
        query=_copied(call.query, kept),
        key=_copied(call.key, kept),
        value=_copied(call.value, kept) if values and call.value is not None else None,
        lse=_copied(call.lse, call.lse.dtype) if call.lse is not None and kept == call.query.dtype else None,
    )


class Copies:
    """Masks and scores with tensors of their own, each copied once however many layers share it."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[object, Any]] = {}  # the original stays alive, so that its id stays its own

    def of(self, call: Call) -> Call:
        """The call with a mask and scores that nobody else writes to; a mask that knows the whole text has its own."""
        mask = call.mask if call.mask.static or call.whole is not None else self._of(call.mask)
        score = None if call.score is None else chained(self._of(part) for part in call.score.parts)
        return replace(call, mask=mask, score=score)

    def _of(self, original: T) -> T:
        if id(original) not in self._made:
            self._made[id(original)] = original, _with_own_tensors(original)
        return self._made[id(original)][1]


def _with_own_tensors(original: T) -> T:
    """A copy of a mask or a score, down to its tensors."""
    duplicate = copy(original)
    for name, value in vars(original).items():
        if isinstance(value, Tensor):
            object.__setattr__(duplicate, name, value.detach().clone())
        elif isinstance(value, Mask):
            object.__setattr__(duplicate, name, _with_own_tensors(value))
    return duplicate


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy that lies apart.

    What stays between the blocks that a model takes and gives back for each layer would keep the allocator from using
    that room again, and a pass would take half as much memory again as its trace.
    """
    num_bytes = tensor.numel() * dtype.itemsize
    if tensor.device.type != "cpu" or num_bytes < APART:
        return tensor.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
    return torch.frombuffer(mmap(-1, num_bytes), dtype=dtype).view(tensor.shape).copy_(tensor.detach())


def follows(rows: range, columns: range, call: Call) -> bool:
    """Whether the queries of a call stand after these rows, and its keys end with its queries, as with a cache."""
    return 0 < call.row == rows.stop == columns.stop and call.columns.stop == call.rows.stop


def same_numbers(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors agree in the dtype of the second."""
    return first.data_ptr() == second.data_ptr() or torch.equal(first.detach().to(second.dtype), second)
