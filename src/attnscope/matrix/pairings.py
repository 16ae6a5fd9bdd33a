"""The weight of each row on the keys that match it: those that carry the same number as the query.

Numbers may be ids of tokens (where has this token stood before?), ids one place on (what came after it?) or ids of
documents. Rows meet their keys block by block. Where matches are few, as those of words are, they are listed for some
rows at a time and picked out of each block; where they are many, blocks are compared whole. A list of all of them is
never made: a text of one repeated token has n^2.
In: numbers for queries and keys, and blocks of weights. Out: (batch, heads, pairings, queries).
Does not know: tokens, where blocks come from. Memory: the results, O(n) for each pairing, and a block of booleans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.cells import allowed_cells
from attnscope.attention.scores import Cells
from attnscope.errors import ShapeError
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.statistics import Weights

Pairing = tuple[Tensor, Tensor]
"""A number for each query and for each key, (queries,) and (keys,) or (batch, queries) and (batch, keys)."""

FEW = 16  # a match for so many cells is listed; more of them are found by comparing
KEPT = 2**16  # so many matches of a text may stay listed for the next matrix


class SharedPairings(tuple[Pairing, ...]):
    """Pairings that matrices of equal sizes share, as the layers of a model do: what is listed for one stays listed."""

    numbers: list[list[_Numbers]] | None = None


class _Listed(NamedTuple):
    """Matches of some rows, by rising column: rows count from the first of them."""

    rows: Tensor
    columns: Tensor

    def seen(self, source: LazyWeights, batch: int, top: int) -> _Listed:
        """Those that a mask allows, which is the same for all heads; `top` is the first row."""
        cells = Cells((self.rows + top)[:, None], self.columns[:, None], source.sizes)
        found = _of_batch(allowed_cells(source.rule, cells), batch).reshape(-1)
        return _Listed(self.rows[found], self.columns[found])


class _Seen(NamedTuple):
    """Matches of some rows that a mask allows, and how many each row has."""

    listed: _Listed
    counts: Tensor


class _Numbers:
    """The numbers of one pairing in one batch row, with keys in the order of their numbers."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.queries, self.keys = queries, keys
        numbers, self._order = keys.sort(stable=True)
        self._first = torch.searchsorted(numbers, queries)
        self._count = torch.searchsorted(numbers, queries, right=True) - self._first
        self._kept: dict[tuple[int, int], _Listed | None] | None = {} if int(self._count.sum()) <= KEPT else None
        self._seen: dict[tuple[int, int], tuple[Mask, _Seen]] = {}

    def fits(self, queries: int, keys: int, device: torch.device) -> bool:
        """Whether these are the numbers of so many rows and keys."""
        return len(self.queries) == queries and len(self.keys) == keys and self.keys.device == device

    def listed(self, top: int, bottom: int) -> _Listed | None:
        """All matches of rows [top, bottom), seen or not; None where they are too many to be listed."""
        if self._kept is None:
            return self._list(top, bottom)
        if (top, bottom) not in self._kept:
            self._kept[top, bottom] = self._list(top, bottom)
        return self._kept[top, bottom]

    def seen(self, top: int, bottom: int, source: LazyWeights, batch: int) -> _Seen:
        """The matches of rows [top, bottom) that can be listed and seen; what is known of the same mask is kept."""
        mask, listed = source.rule.mask, self.listed(top, bottom)
        assert listed is not None
        before, known = self._seen.get((top, bottom), (None, None))
        if known is not None and (before is mask or (mask.is_static and before == mask)):
            return known
        listed = listed.seen(source, batch, top)
        found = _Seen(listed, torch.bincount(listed.rows, minlength=bottom - top))
        if self._kept is not None:
            self._seen[top, bottom] = mask, found
        return found

    def _list(self, top: int, bottom: int) -> _Listed | None:
        first, count = self._first[top:bottom], self._count[top:bottom]
        total = int(count.sum())
        if FEW * total > (bottom - top) * len(self.keys):
            return None
        before = count.cumsum(0) - count
        rows = torch.repeat_interleave(count)
        columns = self._order[torch.arange(total, device=rows.device) + (first - before)[rows]]
        columns, order = columns.sort()
        return _Listed(rows[order], columns)


@dataclass(frozen=True)
class Matching:
    """The numbers of each batch row and pairing, and what has been summed up so far."""

    numbers: list[list[_Numbers]]
    weights: Tensor
    counts: Tensor
    alike: bool  # the mask is the same for all heads, and counts are made once

    @staticmethod
    def over(source: Weights, pairings: Sequence[Pairing]) -> Matching:
        """Nothing summed up yet."""
        batch, heads, queries, _ = source.sizes
        weights = torch.zeros(batch, heads, len(pairings), queries, dtype=source.dtype, device=source.device)
        alike = isinstance(source, LazyWeights) and source.lowered is not None
        counts = torch.zeros_like(weights[:, :1] if alike else weights, dtype=torch.long)
        return Matching(_numbers(source, pairings), weights, counts.expand(-1, heads, -1, -1), alike)

    def of(self, batch: slice, heads: slice) -> Matching:
        """That of some batch rows and heads, as views; what is the same for all heads is counted with the first."""
        counts = self.counts[batch, heads]
        if self.alike:
            counts = counts[:, : 1 if heads.start == 0 else 0]
        return Matching(self.numbers[batch], self.weights[batch, heads], counts, self.alike)

    def at_rows(self, top: int, bottom: int, source: Weights) -> list[Here]:
        """What is to be summed up of rows [top, bottom); where there are lists, only what can be seen is in them."""
        found = []
        for row, pairings in enumerate(self.numbers):
            for at, numbers in enumerate(pairings):
                weights, counts = (total[row, :, at, top:bottom] for total in (self.weights, self.counts))
                listed = numbers.listed(top, bottom)
                if listed is not None and isinstance(source, LazyWeights) and self.alike:
                    listed, seen = numbers.seen(top, bottom, source, row)
                    counts += seen
                    counts = counts[:0]
                if listed is None or len(listed.rows):
                    found.append(Here(row, numbers, listed, weights, counts, top))
        return found


class Here(NamedTuple):
    """Some rows of one batch row, for one pairing; `weights` and `counts` (heads, rows) are added to.

    Counts may be those of fewer heads, or of none.
    """

    batch: int
    numbers: _Numbers
    listed: _Listed | None
    weights: Tensor
    counts: Tensor
    top: int

    def add(self, left: int, weights: Tensor, seen: Tensor | None) -> None:
        """Add a block of weights (batch, heads, rows, columns) from column `left` on.

        `seen` says which of them the mask allows, for all batch rows and heads or for each; None says all.
        """
        mine = weights[self.batch]
        visible = None if seen is None else _of_batch(seen, self.batch)
        if self.listed is None:
            self._compare(left, mine, visible)
        else:
            self._pick(self.listed, left, mine, visible)

    def _pick(self, listed: _Listed, left: int, weights: Tensor, visible: Tensor | None) -> None:
        heads, _, wide = weights.shape
        start, stop = torch.searchsorted(listed.columns, listed.columns.new_tensor([left, left + wide])).tolist()
        if start == stop:
            return
        rows = listed.rows[start:stop]
        cells = rows * wide + listed.columns[start:stop] - left
        self.weights.index_add_(1, rows, weights.reshape(heads, -1)[:, cells])
        if len(self.counts):
            found = rows.new_ones(1, 1) if visible is None else visible.flatten(-2)[..., cells].long()
            self.counts.index_add_(1, rows, found.expand(len(self.counts), len(rows)))

    def _compare(self, left: int, weights: Tensor, visible: Tensor | None) -> None:
        high, wide = weights.shape[-2:]
        own = self.numbers.queries[self.top : self.top + high, None]
        same = own == self.numbers.keys[None, left : left + wide]
        self.weights.add_((weights * same).sum(-1))
        if len(self.counts):
            self.counts.add_((same if visible is None else same & visible).sum(-1))


def _numbers(source: Weights, pairings: Sequence[Pairing]) -> list[list[_Numbers]]:
    """The numbers of each batch row and pairing; those of prepared pairings are made once."""
    batch, _, queries, keys = source.sizes
    known = pairings.numbers if isinstance(pairings, SharedPairings) else None
    if known and len(known) == batch and all(each.fits(queries, keys, source.device) for each in known[0]):
        return known
    both = [
        (_checked(own, batch, queries, source.device), _checked(theirs, batch, keys, source.device))
        for own, theirs in pairings
    ]
    found = [[_Numbers(own[row], theirs[row]) for own, theirs in both] for row in range(batch)]
    if isinstance(pairings, SharedPairings):
        pairings.numbers = found
    return found


def _of_batch(seen: Tensor, batch: int) -> Tensor:
    """Of a mask (batch or 1, heads or 1, rows, columns) or (rows, columns), what one batch row sees."""
    return seen if seen.dim() == 2 else seen[batch if seen.shape[0] > 1 else 0]


def _checked(given: Tensor, batch: int, count: int, device: torch.device) -> Tensor:
    """Numbers as (batch, count)."""
    if given.is_floating_point() or given.shape not in ((count,), (batch, count)):
        raise ShapeError(
            f"pairings: expected integer ids ({count},) or ({batch}, {count}), got {tuple(given.shape)} {given.dtype}"
        )
    return given.to(device=device, dtype=torch.long).expand(batch, count)
