"""One attention of a model as statistics alone: computed while the model runs, after which query and key are let go.

In: calls, in one piece or as a cache joins them. Out: a `Summary` of all rows, exact. The picture in it needs to know
how long the text will be before its first piece comes.
Does not know: models, tokens. Memory: some numbers for each row and each key, and the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from sightline.errors import UnsupportedError
from sightline.matrix import AttentionMatrix
from sightline.matrix.pooling import even_edges
from sightline.matrix.summary import Summary, stacked
from sightline.record.call import Call

BINS = 64


class SummedLayer:
    """A name and what was summed up under it."""

    def __init__(self, name: str, call: Call, *, cross: bool, length: int | None = None) -> None:
        """`length` is that of the whole text, where this call may bring its beginning only."""
        self.name, self.cross, self._length = name, cross, length
        batch, heads, queries, _ = call.query.shape
        queries = queries if length is None or cross else length
        keys = call.key.shape[2] if length is None or cross else length
        self.shape = batch, heads, queries, keys
        self.heads = call.heads or tuple(range(heads))
        self._edges = [even_edges(count, min(BINS, count)) for count in (queries, keys)]
        self._rows = call.rows
        self._parts = [self._summed(call)]
        self._summary: Summary | None = None

    @classmethod
    def restored(
        cls, name: str, cross: bool, shape: tuple[int, int, int, int], heads: tuple[int, ...], summary: Summary
    ) -> SummedLayer:
        """A layer whose summary was kept somewhere."""
        layer = cls.__new__(cls)
        layer.heads = heads
        layer.name, layer.cross, layer.shape, layer._summary, layer._parts = name, cross, shape, summary, []
        return layer

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        kept = [*self._parts, *([] if self._summary is None else [self._summary])]
        return sum(tensor.untyped_storage().nbytes() for part in kept for tensor in part if tensor.numel())

    def sees_the_same(self, call: Call) -> bool:
        """Whether a call of cross-attention belongs to this layer: in one pass, there is only one."""
        return self.cross

    def append(self, call: Call) -> None:
        """Add the rows of a call that goes on with the text."""
        if self._length is None or self.cross or call.rows.stop > self._length:
            raise UnsupportedError(
                f"record: {self.name} went on with a text whose length was not known before, and the picture among its "
                "statistics cannot grow; use sightline.record.read(...), which knows the length, or keep='matrix'"
            )
        self._rows = range(self._rows.start, call.rows.stop)
        self._parts.append(self._summed(call))

    def summary(self) -> Summary:
        """The statistics of all rows."""
        if self._summary is None:
            if self._length is not None and not self.cross and len(self._rows) < self._length:
                raise UnsupportedError(
                    f"{self.name}: {len(self._rows):,} of {self._length:,} rows have been recorded; the statistics are "
                    "there when the pass is through"
                )
            self._summary, self._parts = stacked(self._parts, self.shape[3]), []
        return self._summary

    def matrix(self) -> AttentionMatrix:
        """Refused: there is nothing left to make a matrix of."""
        raise UnsupportedError(
            f"{self.name}: this trace was recorded with keep='statistics', so that queries and keys are gone; its "
            "statistics are trace.summary(name), and keep='matrix' keeps the rest"
        )

    def _summed(self, call: Call) -> Summary:
        rows, columns = self._edges
        if self._length is not None and not self.cross:
            rows, columns = _clipped(rows, call.rows), _clipped(columns, call.columns)
        found = replace(call, value=None).matrix().summary(rows, columns)
        if self._length is None or self.cross:
            return found
        beside = call.column, self._length - call.columns.stop  # a window's cache has let go of the first keys
        of_keys = {name: functional.pad(getattr(found, name), beside) for name in ("received", "audience")}
        first = found.first if call.column == 0 else torch.zeros_like(found.first)
        return found._replace(first=first, **of_keys)


def _clipped(edges: Sequence[int], positions: range) -> list[int]:
    """Edges of bins as places in a part of the positions; bins beside the part are empty."""
    return [min(max(edge, positions.start), positions.stop) - positions.start for edge in edges]
