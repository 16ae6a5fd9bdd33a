"""One attention of a model, as it was seen: in one call, or in several that a cache joins into one matrix.

In: calls. Out: an AttentionMatrix with all their rows. A call joins those before it when it goes on where they ended:
its queries follow theirs, and its keys are theirs and the new ones (self-attention), or theirs alone (cross-attention).
Does not know: models, tokens. Memory: query, key and normalisers of all rows, keys once.
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
    """A name and the calls that belong together."""

    check_file: Callable[[], None] = staticmethod(skip_check)
    """Called before the calls are used."""

    def __init__(self, name: str, call: Call, *, cross: bool, spill: Spill | None = None) -> None:
        """`spill` moves what is held elsewhere."""
        self.name, self.cross = name, cross
        self._spill = spill
        self._calls: list[Call] = [self._spilled(call)]
        self.columns = call.columns

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads, _, _ = self._calls[0].query.shape
        return batch, heads, len(self.rows), len(self.columns)

    @property
    def heads(self) -> tuple[int, ...]:
        """The numbers of the heads in their model."""
        return self._calls[0].heads or tuple(range(self.shape[1]))

    @property
    def rows(self) -> range:
        """The positions of the queries."""
        return range(self._calls[0].row, self._calls[-1].rows.stop)

    @property
    def nbytes(self) -> int:
        """Bytes that are held, masks and biases included."""
        return count_bytes(self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is held."""
        return (tensor for call in self._calls for tensor in call.tensors())

    def to(self, device: torch.device) -> Layer:
        """The layer with its tensors on a device."""
        moved = Layer.__new__(Layer)
        moved.__setstate__(self.__getstate__() | {"_calls": [self.joined().to(device)]})
        return moved

    def __getstate__(self) -> dict[str, Any]:
        """All calls as one, without what belongs to the model or to a folder of this machine."""
        return vars(self) | {"_calls": [replace(self.joined(), whole=None)], "_spill": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def has_same_keys(self, call: Call) -> bool:
        """Whether a call of cross-attention looks at the keys that this layer has."""
        key = self._calls[0].key
        return self.cross and call.key.shape == key.shape and same_numbers(call.key, key)

    def num_known_keys(self, call: Call) -> int:
        """How many keys of a call that goes on with this layer are here already."""
        return call.key.shape[2] if self.cross else call.row - call.column

    @property
    def last_key(self) -> Tensor:
        """The last key, (batch, key heads, 1, dim)."""
        return self._calls[-1].key[:, :, -1:]

    def append(self, news: Call) -> None:
        """Add a copy of a call that goes on with this layer, without the keys that are here already."""
        self.columns = range(self.columns.start, self.columns.stop + news.key.shape[2])
        self._calls.append(self._spilled(news))

    def matrix(self) -> AttentionMatrix:
        """All rows as one matrix, with leading (batch, head)."""
        return self.joined().matrix()

    def joined(self) -> Call:
        """All calls as one, which takes their place."""
        self.check_file()
        if len(self._calls) > 1:
            first, last = self._calls[0], self._calls[-1]
            together = {name: _joined(self._calls, name) for name in ("query", "key", "value", "lse")}
            score = reduce(_score_of_both, (call.score_mod for call in self._calls))
            score = _widened(score, self.shape[2], self.shape[3])
            self._calls = [
                self._spilled(replace(first, mask=self._mask(), score_mod=score, whole=last.whole, **together))
            ]
        return self._calls[0]

    def _spilled(self, call: Call) -> Call:
        return call if self._spill is None else self._spill(call)

    def _mask(self) -> Mask:
        """The masks below each other; where all say the same, that."""
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
            mask = Causal() if alone else call.mask  # one query sees all keys up to its own
            left = 0 if self.cross else call.column - self.columns.start
            yield Step(mask, top, top + count, left, stop)
            top += count


def _joined(calls: list[Call], name: str) -> Tensor | None:
    parts = [getattr(call, name) for call in calls]
    return None if any(part is None for part in parts) else torch.cat(parts, dim=2)


def _is_aligned(mask: Mask) -> bool:
    """Whether a mask counts from the end of the keys, and so says the same for rows of one step and of all."""
    parts = [part for part in (getattr(mask, "first", None), getattr(mask, "second", None)) if part is not None]
    inner = getattr(mask, "inner", None)
    if parts or inner is not None:
        return all(map(_is_aligned, [*parts, *([] if inner is None else [inner])]))
    return not isinstance(mask, Full) and getattr(mask, "offset", None) is None


def _score_of_both(first: ScoreMod | None, second: ScoreMod | None) -> ScoreMod | None:
    """The score of two steps, which must be the same; a table of distances may have grown."""
    ones, twos = (() if score is None else score.parts for score in (first, second))
    if list(map(type, ones)) != list(map(type, twos)):
        raise _changed(first, second)
    joined = [_part_of_both(one, two) for one, two in zip(ones, twos, strict=True)]
    return chain_scores(joined)


def _part_of_both(one: ScoreMod, two: ScoreMod) -> ScoreMod:
    if isinstance(one, DistanceBias) and isinstance(two, DistanceBias):
        return _table_of_both(one, two)
    if isinstance(one, Sinks) and isinstance(two, Sinks):
        same = one.logits is two.logits or torch.equal(one.logits, two.logits)
    else:
        same = one == two
    if not same:
        raise _changed(one, two)
    return two


def _changed(one: ScoreMod | None, two: ScoreMod | None) -> UnsupportedError:
    return UnsupportedError(
        f"record: the scores of a layer changed from {one} to {two} between two steps of generation, so that its rows "
        "do not make one matrix; record a plain pass over the finished text"
    )


def _table_of_both(one: DistanceBias, two: DistanceBias) -> DistanceBias:
    """Join two tables that agree where they overlap."""
    first = min(one.first, two.first)
    last = max(table.first + table.values.shape[1] for table in (one, two))
    values = one.values.new_zeros(one.values.shape[0], last - first)
    for table in (one, two):
        values[:, table.first - first : table.first - first + table.values.shape[1]] = table.values
    start = one.first - first
    if not torch.allclose(values[:, start : start + one.values.shape[1]], one.values):
        raise _changed(one, two)
    return DistanceBias(values, first, one.offset)


def _widened(score: ScoreMod | None, queries: int, keys: int) -> ScoreMod | None:
    """Tables of distances with zeros for those that no step has asked for: they lie ahead, and no query sees them."""
    if score is None:
        return None
    parts = [_wide(part, queries, keys) if isinstance(part, DistanceBias) else part for part in score.parts]
    return chain_scores(parts)


def _wide(table: DistanceBias, queries: int, keys: int) -> DistanceBias:
    behind = max(table.first - (1 - keys), 0)
    ahead = max(queries - (table.first + table.values.shape[1]), 0)
    return DistanceBias(torch.nn.functional.pad(table.values, (behind, ahead)), table.first - behind, table.offset)
