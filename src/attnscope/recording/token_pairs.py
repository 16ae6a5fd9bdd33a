"""What the queries and the keys of a text have in common, as pairings of numbers.

In: ids, and where the document of each token begins. Out: named pairings, for `AttentionMatrix.summary`: a query and a
key that have the same number match. Also the documents that a mask keeps apart.
Does not know: models, heads, what is made of the weights. Memory: O(n).
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
"""Position of the query; the one after it; the same token; what came after the same token, in the text and in the
document alone; the first token of the document."""


class Pairs(NamedTuple):
    """Pairings and what each is called."""

    names: tuple[str, ...] = ()
    pairings: tuple[Pairing, ...] = ()


class _Asked(NamedTuple):
    columns: range
    queries: int
    ids: Tensor | None
    documents: Tensor | None

    def same(self, other: _Asked) -> bool:
        sizes = (self.columns, self.queries) == (other.columns, other.queries)
        return sizes and _equal(self.ids, other.ids) and _equal(self.documents, other.documents)


class PairCache:
    """The pairs that were asked for last: the layers of a pass ask for the same, and share what is worked out."""

    def __init__(self) -> None:
        self._asked: _Asked | None = None
        self._pairs = Pairs()

    def of(self, columns: range, queries: int, ids: Tensor | None, documents: Tensor | None) -> Pairs:
        """As `find_pairs`, with `documents` (batch, position) by their numbers."""
        asked = _Asked(columns, queries, ids, documents)
        if self._asked is None or not asked.same(self._asked):
            found = find_pairs(columns, queries, ids, None if documents is None else beginnings(documents))
            self._asked, self._pairs = asked, found
        return self._pairs


def find_pairs(columns: range, queries: int, ids: Tensor | None, begins: Tensor | None) -> Pairs:
    """Those between the keys at these positions of a text and its last queries up to there.

    `ids` and `begins` (batch, position) are of the whole text, where they are known. With `begins`, as `beginnings`
    gives it, each document is a text of its own.
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
    """The id before each token, and -1 where its text begins."""
    before = functional.pad(ids[:, :-1], (1, 0), value=-1)
    return before if begins is None else before.masked_fill(~goes_on(begins).to(ids.device), -1)


def goes_on(begins: Tensor) -> Tensor:
    """(batch, position): whether the token before is of the same document."""
    return functional.pad(begins[:, 1:] == begins[:, :-1], (1, 0), value=False)


def beginnings(documents: Tensor, real: Tensor | None = None) -> Tensor:
    """(batch, position): where the document of each token begins, for numbers of documents (batch, position).

    Where some tokens are not `real`, documents begin with the first that is.

    >>> beginnings(torch.tensor([[7, 7, 7, 3, 3]]))
    tensor([[0, 0, 0, 3, 3]])
    """
    length = documents.shape[1]
    places = torch.arange(length, device=documents.device)
    rows = []
    for at, row in enumerate(documents):
        numbers, which = row.unique(return_inverse=True)
        held = places if real is None else places.masked_fill(~real[at].to(places.device), length - 1)
        rows.append(places.new_full(numbers.shape, length).scatter_reduce_(0, which, held, "amin")[which])
    return torch.stack(rows)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.device == other.device and torch.equal(one, other)


def documents_in(mask: Mask) -> Tensor | None:
    """The numbers (keys,) or (batch, keys) of documents that a mask keeps apart, whatever else it hides."""
    found = list(_joined(mask))
    return found[0].ids if len(found) == 1 and found[0].query_ids is None else None


def _joined(mask: Mask) -> list[Documents]:
    if isinstance(mask, And):
        return [*_joined(mask.first), *_joined(mask.second)]
    return [mask] if isinstance(mask, Documents) else []
