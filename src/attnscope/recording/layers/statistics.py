"""A layer of a trace that stores statistics only: they are computed as the model runs, then query and key are freed.

In: one call, or the calls of a sequence in chunks, with the token ids so far. Out: an exact `Summary` of all rows, with
the names of its pairings. Its map has fixed bins, so the sequence length must be known before the first chunk.
Does not know: models, token texts. Memory: a few numbers per row and per key, and the map.
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
from attnscope.recording.token_pairs import PairCache, Pairs, document_starts, documents_in

BINS = 64


class StatisticsLayer:
    """A layer name and its statistics."""

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
        """Compute the statistics of the first call.

        Args:
            name: The name of the layer.
            call: The first call.
            cross: Whether it is cross-attention.
            length: The sequence length, if the calls are chunks of the sequence.
            ids: The token ids so far.
            pairs: The matching token pairs, shared with the other layers of the text.
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
        self._add(call, ids)

    @classmethod
    def from_summary(
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
        """A layer with a summary that was saved or computed before."""
        layer = cls.__new__(cls)
        layer.heads = heads
        layer.name, layer.cross, layer.shape, layer._summary, layer._parts = name, cross, shape, summary, []
        layer._named, layer._documents = [pairings], begins  # documents may be numbered by where they begin
        return layer

    @property
    def pairings(self) -> tuple[str, ...]:
        """The names of the pairings in the summary, which are those that all chunks have."""
        return tuple(name for name in self._named[0] if all(name in names for names in self._named))

    @property
    def begins(self) -> Tensor | None:
        """(batch, keys): where the document of each token begins, if the mask separates documents."""
        self.check_file()
        return document_starts(self._documents) if self._documents is not None and "start" in self.pairings else None

    @property
    def nbytes(self) -> int:
        """The memory of the statistics."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors() if tensor.numel())

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the statistics."""
        return iter_tensors((self._parts, self._summary))

    def to(self, device: torch.device) -> StatisticsLayer:
        """A copy of the layer on a device."""
        summary, begins = map_tensors((self.summary(), self.begins), lambda tensor: tensor.to(device))
        options = {"pairings": self.pairings, "begins": begins}
        return self.from_summary(self.name, self.cross, self.shape, self.heads, summary, **options)

    def has_same_keys(self, call: Call) -> bool:
        """Whether this is a cross-attention layer, whose keys are those of every call in one pass."""
        return self.cross

    def append(self, call: Call, ids: Tensor | None = None) -> None:
        """Add the rows of the next chunk; `ids` are the token ids so far."""
        if self._length is None or self.cross or call.rows.stop > self._length:
            raise UnsupportedError(
                f"record: {self.name} got another chunk of a sequence whose length was not given, and the map in its "
                "statistics has fixed bins; use attnscope.read(...), pass length=, or use keep='matrix'"
            )
        self._rows = range(self._rows.start, call.rows.stop)
        self._add(call, ids)

    def summary(self) -> Summary:
        """The statistics of all rows."""
        self.check_file()
        if self._summary is None:
            if self._length is not None and not self.cross and len(self._rows) < self._length:
                raise UnsupportedError(
                    f"{self.name}: {len(self._rows):,} of {self._length:,} rows have been recorded; the statistics are "
                    "complete after the last chunk"
                )
            parts = [_with_pairings(*both, self.pairings) for both in zip(self._parts, self._named, strict=True)]
            self._summary, self._parts = concat_rows(parts, self.shape[3]), []
        return self._summary

    def matrix(self) -> AttentionMatrix:
        """Raise UnsupportedError, since queries and keys are not stored."""
        raise UnsupportedError(
            f"{self.name}: this trace was recorded with keep='statistics', so it has no queries and keys; use "
            "trace.summary(name), or record with keep='matrix'"
        )

    def _add(self, call: Call, ids: Tensor | None) -> None:
        self._documents = self._documents_up_to(call)
        pairs = self._pairs(call, ids)
        self._parts.append(self._summarize(call, pairs))
        self._named.append(pairs.names)

    def _documents_up_to(self, call: Call) -> Tensor | None:
        """The document index of each position so far, (batch, position), taken from the masks.

        None if they are incomplete, because a sliding-window cache has dropped the first keys.
        """
        found = None if self.cross else documents_in(call.mask)
        if found is None or (self._documents is None and call.column > 0):
            return None
        found = found.expand(call.query.shape[0], -1)
        return found if self._documents is None else torch.cat([self._documents[:, : call.column], found], 1)

    def _pairs(self, call: Call, ids: Tensor | None) -> Pairs:
        """The matching token pairs of this call; none for cross-attention, where the texts differ."""
        batch, _, queries, _ = call.query.shape
        if self.cross or queries > len(call.columns):
            return Pairs()
        known = ids is not None and tuple(ids.shape) == (batch, call.columns.stop)
        return self._latest_pairs.of(call.columns, queries, ids if known else None, self._documents)

    def _summarize(self, call: Call, pairs: Pairs) -> Summary:
        rows, columns = self._edges
        if self._length is not None and not self.cross:
            rows, columns = _clip_edges(rows, call.rows), _clip_edges(columns, call.columns)
        found = replace(call, value=None).matrix().summary(rows, columns, pairings=pairs.pairings)
        if self._length is None or self.cross:
            return found
        missing = call.column, self._length - call.columns.stop  # a sliding-window cache has dropped the first keys
        of_keys = {name: functional.pad(getattr(found, name), missing) for name in ("received", "visible_queries")}
        first = found.first_weight if call.column == 0 else torch.zeros_like(found.first_weight)
        return found._replace(first_weight=first, **of_keys)


def _with_pairings(part: Summary, names: tuple[str, ...], wanted: tuple[str, ...]) -> Summary:
    """The summary of a chunk with only the wanted pairings."""
    if names == wanted:
        return part
    places = [names.index(name) for name in wanted]
    return part._replace(matched_weight=part.matched_weight[:, :, places], num_matches=part.num_matches[:, :, places])


def _clip_edges(edges: Sequence[int], positions: range) -> list[int]:
    """Bin edges relative to a range of positions; bins outside of the range are empty."""
    return [min(max(edge, positions.start), positions.stop) - positions.start for edge in edges]
