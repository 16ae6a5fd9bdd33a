"""One attention of a model as statistics alone: computed while the model runs, after which query and key are let go.

In: calls, in one piece or as a cache joins them, with the ids of the text so far. Out: a `Summary` of all rows, exact,
with the names of its pairings. The picture in it needs to know how long the text will be before its first piece comes.
Does not know: models, what tokens say. Memory: some numbers for each row and each key, and the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.attention.tensors import iter_tensors, map_tensors
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.pooling import even_edges
from attnscope.matrix.summary import Summary, concat_rows
from attnscope.recording.call import Call
from attnscope.recording.files.file_check import skip_check
from attnscope.recording.token_pairs import PairCache, Pairs, beginnings, documents_in

BINS = 64


class StatisticsLayer:
    """A name and what was summed up under it."""

    check_file: Callable[[], None] = staticmethod(skip_check)
    """Called before the statistics are used."""

    def __init__(
        self,
        name: str,
        call: Call,
        *,
        cross: bool,
        length: int | None = None,
        ids: Tensor | None = None,
        pairs: PairCache,
    ) -> None:
        """`length` is that of the whole text, where this call may bring its beginning only; `ids` are those so far.

        `pairs` is shared with the other layers of the text.
        """
        self.name, self.cross, self._length, self._latest_pairs = name, cross, length, pairs
        batch, heads, queries, _ = call.query.shape
        queries = queries if length is None or cross else length
        keys = call.key.shape[2] if length is None or cross else length
        self.shape = batch, heads, queries, keys
        self.heads = call.heads or tuple(range(heads))
        self._edges = [even_edges(count, min(BINS, count)) for count in (queries, keys)]
        self._rows = call.rows
        self._documents: Tensor | None = None
        self._parts: list[Summary] = []
        self._named: list[tuple[str, ...]] = []  # the pairings of each part
        self._summary: Summary | None = None
        self._sum_up(call, ids)

    @classmethod
    def restored(
        cls,
        name: str,
        cross: bool,
        shape: tuple[int, int, int, int],
        heads: tuple[int, ...],
        summary: Summary,
        *,
        pairings: tuple[str, ...] = (),
        begins: Tensor | None = None,
    ) -> StatisticsLayer:
        """A layer whose summary was kept somewhere."""
        layer = cls.__new__(cls)
        layer.heads = heads
        layer.name, layer.cross, layer.shape, layer._summary, layer._parts = name, cross, shape, summary, []
        layer._named, layer._documents = [pairings], begins  # documents may be numbered by where they begin
        return layer

    @property
    def pairings(self) -> tuple[str, ...]:
        """What the pairings of its summary are called: those that all of its parts have."""
        return tuple(name for name in self._named[0] if all(name in names for names in self._named))

    @property
    def begins(self) -> Tensor | None:
        """(batch, keys): where the document of each token begins, if a mask has kept documents apart."""
        self.check_file()
        return beginnings(self._documents) if self._documents is not None and "start" in self.pairings else None

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors() if tensor.numel())

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is held."""
        return iter_tensors((self._parts, self._summary))

    def to(self, device: torch.device) -> StatisticsLayer:
        """The layer with its statistics on a device."""
        summary, begins = map_tensors((self.summary(), self.begins), lambda tensor: tensor.to(device))
        options = {"pairings": self.pairings, "begins": begins}
        return self.restored(self.name, self.cross, self.shape, self.heads, summary, **options)

    def has_same_keys(self, call: Call) -> bool:
        """Whether a call of cross-attention belongs to this layer: in one pass, there is only one."""
        return self.cross

    def append(self, call: Call, ids: Tensor | None = None) -> None:
        """Add the rows of a call that goes on with the text, whose `ids` are those so far."""
        if self._length is None or self.cross or call.rows.stop > self._length:
            raise UnsupportedError(
                f"record: {self.name} went on with a text whose length was not known before, and the picture among its "
                "statistics cannot grow; use attnscope.read(...), which knows the length, or keep='matrix'"
            )
        self._rows = range(self._rows.start, call.rows.stop)
        self._sum_up(call, ids)

    def summary(self) -> Summary:
        """The statistics of all rows."""
        self.check_file()
        if self._summary is None:
            if self._length is not None and not self.cross and len(self._rows) < self._length:
                raise UnsupportedError(
                    f"{self.name}: {len(self._rows):,} of {self._length:,} rows have been recorded; the statistics are "
                    "there when the pass is through"
                )
            parts = [_with_pairings(*both, self.pairings) for both in zip(self._parts, self._named, strict=True)]
            self._summary, self._parts = concat_rows(parts, self.shape[3]), []
        return self._summary

    def matrix(self) -> AttentionMatrix:
        """Refused: there is nothing left to make a matrix of."""
        raise UnsupportedError(
            f"{self.name}: this trace was recorded with keep='statistics', so that queries and keys are gone; its "
            "statistics are trace.summary(name), and keep='matrix' keeps the rest"
        )

    def _sum_up(self, call: Call, ids: Tensor | None) -> None:
        self._documents = self._documents_up_to(call)
        pairs = self._pairs(call, ids)
        self._parts.append(self._summed(call, pairs))
        self._named.append(pairs.names)

    def _documents_up_to(self, call: Call) -> Tensor | None:
        """The numbers of documents so far, (batch, position), as masks tell them; a window's cache drops the first."""
        found = None if self.cross else documents_in(call.mask)
        if found is None or (self._documents is None and call.column > 0):
            return None
        found = found.expand(call.query.shape[0], -1)
        return found if self._documents is None else torch.cat([self._documents[:, : call.column], found], 1)

    def _pairs(self, call: Call, ids: Tensor | None) -> Pairs:
        """What this call's queries and keys have in common: nothing where they are of different texts."""
        batch, _, queries, _ = call.query.shape
        if self.cross or queries > len(call.columns):
            return Pairs()
        known = ids is not None and tuple(ids.shape) == (batch, call.columns.stop)
        return self._latest_pairs.of(call.columns, queries, ids if known else None, self._documents)

    def _summed(self, call: Call, pairs: Pairs) -> Summary:
        rows, columns = self._edges
        if self._length is not None and not self.cross:
            rows, columns = _clipped(rows, call.rows), _clipped(columns, call.columns)
        found = replace(call, value=None).matrix().summary(rows, columns, pairings=pairs.pairings)
        if self._length is None or self.cross:
            return found
        beside = call.column, self._length - call.columns.stop  # a window's cache has let go of the first keys
        of_keys = {name: functional.pad(getattr(found, name), beside) for name in ("received", "visible_queries")}
        first = found.first_weight if call.column == 0 else torch.zeros_like(found.first_weight)
        return found._replace(first_weight=first, **of_keys)


def _with_pairings(part: Summary, names: tuple[str, ...], wanted: tuple[str, ...]) -> Summary:
    """A part with some of its pairings."""
    if names == wanted:
        return part
    places = [names.index(name) for name in wanted]
    return part._replace(matched_weight=part.matched_weight[:, :, places], num_matches=part.num_matches[:, :, places])


def _clipped(edges: Sequence[int], positions: range) -> list[int]:
    """Edges of bins as places in a part of the positions; bins beside the part are empty."""
    return [min(max(edge, positions.start), positions.stop) - positions.start for edge in edges]
