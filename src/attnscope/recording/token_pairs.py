"""Query and key pairs whose attention weights are summed, for scores such as previous-token and induction.

In: token ids, and the start of each token's document. Out: named pairings for `AttentionMatrix.summary`: a query and a
key match if they have the same number. Also the documents that a mask separates.
Does not know: models, heads. Memory: O(n).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.attention import Documents
from attnscope.attention.algebra import And, Mask
from attnscope.matrix.pairings import Pairing

NAMES = ("own", "next", "duplicate", "induction", "continuation", "start")
"""The key at the query's position; the key before it; the same token; the token after an earlier occurrence of the same
token, in the whole text or within the document; the first token of the document."""


class Pairs(NamedTuple):
    """Pairings and their names."""

    names: tuple[str, ...] = ()
    pairings: tuple[Pairing, ...] = ()


class _Arguments(NamedTuple):
    columns: range
    queries: int
    ids: Tensor | None
    documents: Tensor | None

    def equals(self, other: _Arguments) -> bool:
        sizes = (self.columns, self.queries) == (other.columns, other.queries)
        return sizes and _equal(self.ids, other.ids) and _equal(self.documents, other.documents)


class PairCache:
    """Caches the last pairs, because all layers of a forward pass need the same."""

    def __init__(self) -> None:
        self._arguments: _Arguments | None = None
        self._pairs = Pairs()

    def of(self, columns: range, queries: int, ids: Tensor | None, documents: Tensor | None) -> Pairs:
        """The result of `find_pairs`, for the document index of each position (batch, position)."""
        arguments = _Arguments(columns, queries, ids, documents)
        if self._arguments is None or not arguments.equals(self._arguments):
            found = find_pairs(columns, queries, ids, None if documents is None else document_starts(documents))
            self._arguments, self._pairs = arguments, found
        return self._pairs


def find_pairs(columns: range, queries: int, ids: Tensor | None, begins: Tensor | None) -> Pairs:
    """The pairings of the keys at these positions with the last queries.

    Args:
        columns: The positions of the keys.
        queries: The number of queries, which end at the last key.
        ids: The ids of the whole text, (batch, position), if they are known.
        begins: The result of `document_starts`, if the text has several documents.
    """
    keys, here = len(columns), slice(columns.start, columns.stop)
    last, places = slice(keys - queries, keys), torch.arange(keys)
    found = {"own": (places[last], places), "next": (places[last], places - 1)}
    if ids is not None:
        own = ids[:, here][:, last]
        found["duplicate"] = own, ids[:, here]
        found["induction" if begins is None else "continuation"] = own, ids_before(ids, begins)[:, here]
    if begins is not None:
        numbers = torch.arange(begins.shape[1], device=begins.device)
        found["start"] = begins[:, here][:, last], torch.where(begins == numbers, numbers, -1)[:, here]
    return Pairs(tuple(found), tuple(found.values()))


def ids_before(ids: Tensor, begins: Tensor | None) -> Tensor:
    """The id before each token; -1 for the first token of a text or document."""
    before = functional.pad(ids[:, :-1], (1, 0), value=-1)
    return before if begins is None else before.masked_fill(~has_previous(begins).to(ids.device), -1)


def has_previous(begins: Tensor) -> Tensor:
    """(batch, position): whether the token before is in the same document."""
    return functional.pad(begins[:, 1:] == begins[:, :-1], (1, 0), value=False)


def document_starts(documents: Tensor, real: Tensor | None = None) -> Tensor:
    """(batch, position): where the document of each token begins, for document indices (batch, position).

    Tokens that are not `real` (padding) do not start a document.

    >>> document_starts(torch.tensor([[7, 7, 7, 3, 3]]))
    tensor([[0, 0, 0, 3, 3]])
    """
    length = documents.shape[1]
    places = torch.arange(length, device=documents.device)
    rows = []
    for at, row in enumerate(documents):
        numbers, which = row.unique(return_inverse=True)
        starts = places if real is None else places.masked_fill(~real[at].to(places.device), length - 1)
        rows.append(places.new_full(numbers.shape, length).scatter_reduce_(0, which, starts, "amin")[which])
    return torch.stack(rows)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.device == other.device and torch.equal(one, other)


def documents_in(mask: Mask) -> Tensor | None:
    """The document index of each key, (keys,) or (batch, keys), if the mask separates documents."""
    found = _document_masks(mask)
    return found[0].ids if len(found) == 1 and found[0].query_ids is None else None


def _document_masks(mask: Mask) -> list[Documents]:
    if isinstance(mask, And):
        return [*_document_masks(mask.first), *_document_masks(mask.second)]
    return [mask] if isinstance(mask, Documents) else []
