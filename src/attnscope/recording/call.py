"""One attention call of a model, which hooks pass to the recorder.

In: tensors (batch, head, position, dim), a mask and score modifications. Out: the call for some of its heads, and
copies that no other code writes to. Does not know: models, layer names, hooks. Memory: O(n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.scores import ScoreMod, Sinks, chain_scores
from attnscope.attention.tensors import iter_tensors, map_tensors
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix

MIN_MAPPED_BYTES = 2**18  # smaller copies are allocated by torch

T = TypeVar("T")


class SequenceMask(Protocol):
    """A mask that is known for the whole sequence, not only for the rows and columns of one call."""

    def slice(self, rows: range, columns: range) -> Mask:
        """The mask of these positions."""
        ...

    def is_consistent_with(self, other: SequenceMask) -> bool:
        """Whether both masks agree on the positions that both have."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """The arguments of an attention call.

    Args:
        query: (batch, heads, queries, dim).
        key: (batch, key heads, keys, dim).
        value: (batch, key heads, keys, value dim), or None if it is not stored.
        mask: Which keys each query attends to.
        scale: Multiplies the scores; 1 / sqrt(dim) if None.
        score_mod: Modifies the scores.
        row: The position of the first query in its sequence: with a KV cache, a call has the last rows of a matrix.
        column: The position of the first key in its sequence.
        cross: Whether it is cross-attention; None if the hook does not know.
        whole: The mask of other rows and columns, too, if it is known.
        lse: The log-sum-exp of the scores, (batch, heads, queries), if the kernel returned it.
        heads: The indices of these heads in the model, if they are not all of them.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    mask: Mask
    scale: float | None
    score_mod: ScoreMod | None = None
    row: int = 0
    column: int = 0
    cross: bool | None = None
    whole: SequenceMask | None = None
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

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the call, including those of its mask and score modifications."""
        yield from (one for one in (self.query, self.key, self.value, self.lse) if one is not None)
        yield from iter_tensors((self.mask, self.score_mod))

    def to(self, device: torch.device) -> Call:
        """The call with all its tensors on a device, without the mask of other rows."""
        moved = {name: getattr(self, name) for name in ("query", "key", "value", "lse", "mask", "score_mod")}
        moved = {name: map_tensors(one, lambda tensor: tensor.to(device)) for name, one in moved.items()}
        return replace(self, **moved, whole=None)

    def matrix(self) -> AttentionMatrix:
        """Its attention matrix, (batch, heads, queries, keys)."""
        return AttentionMatrix(
            self.query,
            self.key,
            mask=self.mask,
            scale=self.scale,
            score_mod=self.score_mod,
            value=self.value,
            lse=self.lse,
        )


def with_heads(call: Call, heads: Sequence[int]) -> Call:
    """The call restricted to some query heads, each with its own key head."""
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
        score_mod=narrow_score(call.score_mod, everything, chosen),
    )


def narrow_score(score: ScoreMod | None, batch: slice, heads: list[int]) -> ScoreMod | None:
    """The score modifier of these batch rows and heads."""
    parts = () if score is None else score.parts
    return chain_scores(part.narrow(heads) if isinstance(part, Sinks) else part.narrow(batch, heads) for part in parts)


class MaskCopies:
    """Copies of masks and score modifications; one that several layers share is copied once."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[object, Any]] = {}  # the original stays alive, so that its id stays its own

    def mask_of(self, call: Call) -> Mask:
        """The mask of a call as a copy; a mask of the whole sequence is already a copy."""
        return call.mask if call.mask.is_static or call.whole is not None else self._of(call.mask)

    def score_of(self, call: Call) -> ScoreMod | None:
        """The score modifier of a call as a copy."""
        return None if call.score_mod is None else chain_scores(self._of(part) for part in call.score_mod.parts)

    def _of(self, original: T) -> T:
        if id(original) not in self._made:
            self._made[id(original)] = original, map_tensors(original, lambda tensor: tensor.detach().clone())
        return self._made[id(original)][1]


def copy_call(
    call: Call,
    dtype: torch.dtype | None,
    *,
    values: bool,
    copies: MaskCopies,
    row: int | None = None,
    first_key: int = 0,
) -> Call:
    """The call with copies of its tensors, since models write to caches, buffers and parameters later.

    Args:
        call: The call.
        dtype: The dtype of the copies; that of the query if None. In another dtype, the lse would not fit the stored
            query and key, and is left out. Otherwise it is not copied, because `attend` has made it for this call.
        values: Whether to copy the values; otherwise they are left out.
        copies: The copies of masks and score modifications.
        row: The position of the first query, instead of that of the call.
        first_key: The keys before this one are left out, for a call that continues others.
    """
    kept = call.query.dtype if dtype is None else dtype
    key, value = call.key, call.value if values else None
    if first_key:
        key, value = key[:, :, first_key:], None if value is None else value[:, :, first_key:]
    return replace(
        call,
        row=call.row if row is None else row,
        query=_copied(call.query, kept),
        key=_copied(key, kept),
        value=None if value is None else _copied(value, kept),
        lse=call.lse.detach().contiguous() if call.lse is not None and kept == call.query.dtype else None,
        mask=copies.mask_of(call),
        score_mod=copies.score_of(call),
    )


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy outside of the heap, in an anonymous mapping, if it is large; see `heap` for the reason."""
    num_bytes = tensor.numel() * dtype.itemsize
    if tensor.device.type != "cpu" or num_bytes < MIN_MAPPED_BYTES:
        return tensor.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
    return torch.frombuffer(mmap(-1, num_bytes), dtype=dtype).view(tensor.shape).copy_(tensor.detach())


def refuse_meta(tensor: Tensor) -> None:
    """Raise UnsupportedError for a tensor on the meta device."""
    if tensor.is_meta:
        raise UnsupportedError(
            "record: the model ran on the meta device, whose tensors have no values; load its parameters on a device "
            "first"
        )


def follows(rows: range, columns: range, call: Call) -> bool:
    """Whether the queries of a call come after these rows and its keys end with its queries, as with a KV cache."""
    return 0 < call.row == rows.stop == columns.stop and call.columns.stop == call.rows.stop


def same_numbers(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal in the dtype of the second."""
    return torch.equal(first if first.dtype == second.dtype else first.to(second.dtype), second)
