"""A layer of a trace that stores queries and keys, of one call or of several decoding steps with a KV cache.

In: calls. Out: an AttentionMatrix with all their rows. A call is appended if its queries follow those of the last call,
and its keys are the cached keys plus its own (self-attention), or the cached keys (cross-attention).
Does not know: models, tokens. Memory: queries, keys and log-sum-exps of all rows, each key once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Causal, Full
from attnscope.attention.algebra import Mask
from attnscope.attention.scores import DistanceBias, ScoreMod, Sinks, chain_scores
from attnscope.attention.tensors import count_bytes
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix
from attnscope.recording.call import Call, same_numbers
from attnscope.recording.files.file_check import skip_check
from attnscope.recording.layers.disk import Spill
from attnscope.recording.layers.step_masks import StackedMask, Step


class Layer:
    """A layer name and the calls that form one attention matrix."""

    check_file: Callable[[], None] = staticmethod(skip_check)
    """Called before the calls are used."""

    def __init__(self, name: str, call: Call, *, cross: bool, spill: Spill | None = None) -> None:
        """`spill` moves the tensors of each call to files."""
        self.name, self.cross = name, cross
        self._spill = spill
        self._calls: list[Call] = [self._to_storage(call)]
        self.columns = call.columns

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads, _, _ = self._calls[0].query.shape
        return batch, heads, len(self.rows), len(self.columns)

    @property
    def heads(self) -> tuple[int, ...]:
        """The indices of the heads in the model."""
        return self._calls[0].heads or tuple(range(self.shape[1]))

    @property
    def rows(self) -> range:
        """The positions of the queries."""
        return range(self._calls[0].row, self._calls[-1].rows.stop)

    @property
    def nbytes(self) -> int:
        """The memory of all tensors, including masks and biases."""
        return count_bytes(self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, including those of masks and biases."""
        return (tensor for call in self._calls for tensor in call.tensors())

    def to(self, device: torch.device) -> Layer:
        """A copy of the layer on a device."""
        moved = Layer.__new__(Layer)
        moved.__setstate__(self.__getstate__() | {"_calls": [self.merge_calls().to(device)]})
        return moved

    def __getstate__(self) -> dict[str, Any]:
        """All calls merged, without references to the model or to a folder."""
        return vars(self) | {"_calls": [replace(self.merge_calls(), whole=None)], "_spill": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def has_same_keys(self, call: Call) -> bool:
        """Whether a cross-attention call has the keys of this layer."""
        key = self._calls[0].key
        return self.cross and call.key.shape == key.shape and same_numbers(call.key, key)

    def num_known_keys(self, call: Call) -> int:
        """How many keys of a call that continues this layer are already stored."""
        return call.key.shape[2] if self.cross else call.row - call.column

    @property
    def last_key(self) -> Tensor:
        """The last key, (batch, key heads, 1, dim)."""
        return self._calls[-1].key[:, :, -1:]

    def append(self, call: Call) -> None:
        """Append a call that continues this layer, with its new keys only."""
        self.columns = range(self.columns.start, self.columns.stop + call.key.shape[2])
        self._calls.append(self._to_storage(call))

    def matrix(self) -> AttentionMatrix:
        """All rows as one matrix, with leading (batch, head)."""
        return self.merge_calls().matrix()

    def merge_calls(self) -> Call:
        """Merge all calls into one, and store it instead of them."""
        self.check_file()
        if len(self._calls) > 1:
            first, last = self._calls[0], self._calls[-1]
            tensors = {name: _concat(self._calls, name) for name in ("query", "key", "value", "lse")}
            score = reduce(_merge_scores, (call.score_mod for call in self._calls))
            score = _pad_tables(score, self.shape[2], self.shape[3])
            merged = replace(first, mask=self._merge_masks(), score_mod=score, whole=last.whole, **tensors)
            self._calls = [self._to_storage(merged)]
        return self._calls[0]

    def _to_storage(self, call: Call) -> Call:
        return call if self._spill is None else self._spill(call)

    def _merge_masks(self) -> Mask:
        """The mask of all rows: one mask if all calls agree on it, otherwise a stack of their masks."""
        last = self._calls[-1].whole
        if last is not None and all(
            call.whole is not None and last.is_consistent_with(call.whole) for call in self._calls
        ):
            return last.slice(self.rows, self.columns)
        steps = list(self._steps())
        masks = {step.mask for step in steps} if all(step.mask.is_static for step in steps) else set()
        one = masks.pop() if len(masks) == 1 else None
        if one is not None and (isinstance(one, Full) if self.cross else _is_aligned(one)):
            return one
        return StackedMask(tuple(steps))

    def _steps(self) -> Iterator[Step]:
        top = stop = 0
        for call in self._calls:
            count = call.query.shape[2]
            stop = self._calls[0].key.shape[2] if self.cross else stop + call.key.shape[2]
            alone = count == 1 and isinstance(call.mask, Full) and not self.cross
            mask = Causal() if alone else call.mask  # one query attends to all keys up to its own
            left = 0 if self.cross else call.column - self.columns.start
            yield Step(mask, top, top + count, left, stop)
            top += count


def _concat(calls: list[Call], name: str) -> Tensor | None:
    parts = [getattr(call, name) for call in calls]
    return None if any(part is None for part in parts) else torch.cat(parts, dim=2)


def _is_aligned(mask: Mask) -> bool:
    """Whether a mask is aligned to the last key, so that it is the same for the rows of one step and of all steps."""
    parts = [part for part in (getattr(mask, "first", None), getattr(mask, "second", None)) if part is not None]
    inner = getattr(mask, "inner", None)
    if parts or inner is not None:
        return all(map(_is_aligned, [*parts, *([] if inner is None else [inner])]))
    return not isinstance(mask, Full) and getattr(mask, "offset", None) is None


def _merge_scores(first: ScoreMod | None, second: ScoreMod | None) -> ScoreMod | None:
    """The score modifier of two steps, which must be the same; a distance bias may have more distances."""
    ones, twos = (() if score is None else score.parts for score in (first, second))
    if list(map(type, ones)) != list(map(type, twos)):
        raise _changed_score_error(first, second)
    return chain_scores(_merge_score_steps(one, two) for one, two in zip(ones, twos, strict=True))


def _merge_score_steps(one: ScoreMod, two: ScoreMod) -> ScoreMod:
    if isinstance(one, DistanceBias) and isinstance(two, DistanceBias):
        return _merge_tables(one, two)
    if isinstance(one, Sinks) and isinstance(two, Sinks):
        same = one.logits is two.logits or torch.equal(one.logits, two.logits)
    else:
        same = one == two
    if not same:
        raise _changed_score_error(one, two)
    return two


def _changed_score_error(one: ScoreMod | None, two: ScoreMod | None) -> UnsupportedError:
    return UnsupportedError(
        f"record: the score modifier of a layer changed from {one} to {two} between two decoding steps, so its rows "
        "do not form one matrix; record one forward pass over the finished text"
    )


def _merge_tables(one: DistanceBias, two: DistanceBias) -> DistanceBias:
    """Merge two tables that agree where they overlap."""
    first = min(one.first, two.first)
    last = max(table.first + table.values.shape[1] for table in (one, two))
    values = one.values.new_zeros(one.values.shape[0], last - first)
    for table in (one, two):
        values[:, table.first - first : table.first - first + table.values.shape[1]] = table.values
    start = one.first - first
    if not torch.allclose(values[:, start : start + one.values.shape[1]], one.values):
        raise _changed_score_error(one, two)
    return DistanceBias(values, first, one.offset)


def _pad_tables(score: ScoreMod | None, queries: int, keys: int) -> ScoreMod | None:
    """Pad distance biases with zeros for the distances that no step had: those of future keys, which are masked."""
    if score is None:
        return None
    return chain_scores(
        _pad_table(part, queries, keys) if isinstance(part, DistanceBias) else part for part in score.parts
    )


def _pad_table(table: DistanceBias, queries: int, keys: int) -> DistanceBias:
    behind = max(table.first - (1 - keys), 0)
    ahead = max(queries - (table.first + table.values.shape[1]), 0)
    return DistanceBias(torch.nn.functional.pad(table.values, (behind, ahead)), table.first - behind, table.offset)
