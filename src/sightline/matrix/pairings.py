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

from sightline.errors import ShapeError
from sightline.matrix.statistics import Source

Pairing = tuple[Tensor, Tensor]
"""A number for each query and for each key, (queries,) and (keys,) or (batch, queries) and (batch, keys)."""

FEW = 16  # a match for so many cells is listed; more of them are found by comparing


class _Listed(NamedTuple):
    """Matches of some rows, by rising column: rows count from the first of them."""

    rows: Tensor
    columns: Tensor


class _Numbers:
    """The numbers of one pairing in one batch row, with keys in the order of their numbers."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.queries, self.keys = queries, keys
        numbers, self._order = keys.sort(stable=True)
        self._first = torch.searchsorted(numbers, queries)
        self._count = torch.searchsorted(numbers, queries, right=True) - self._first

    def listed(self, top: int, bottom: int) -> _Listed | None:
        """All matches of rows [top, bottom), seen or not; None where they are too many to be listed."""
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

    @staticmethod
    def over(source: Source, pairings: Sequence[Pairing]) -> Matching:
        """Nothing summed up yet."""
        batch, heads, queries, keys = source.sizes
        both = [
            (_checked(own, batch, queries, source.device), _checked(theirs, batch, keys, source.device))
            for own, theirs in pairings
        ]
        numbers = [[_Numbers(own[row], theirs[row]) for own, theirs in both] for row in range(batch)]
        weights = torch.zeros(batch, heads, len(pairings), queries, dtype=source.dtype, device=source.device)
        return Matching(numbers, weights, torch.zeros_like(weights, dtype=torch.long))

    def of(self, batch: slice, heads: slice) -> Matching:
        """That of some batch rows and heads, as views."""
        return Matching(self.numbers[batch], self.weights[batch, heads], self.counts[batch, heads])

    def at_rows(self, top: int, bottom: int) -> list[Here]:
        """What is to be summed up of rows [top, bottom)."""
        rows = slice(top, bottom)
        return [
            Here(
                row,
                numbers,
                numbers.listed(top, bottom),
                self.weights[row, :, at, rows],
                self.counts[row, :, at, rows],
                top,
            )
            for row, pairings in enumerate(self.numbers)
            for at, numbers in enumerate(pairings)
        ]


class Here(NamedTuple):
    """Some rows of one batch row, for one pairing; `weights` and `counts` (heads, rows) are added to."""

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
        found = rows.new_ones(1, 1) if visible is None else visible.flatten(-2)[..., cells].long()
        self.counts.index_add_(1, rows, found.expand(heads, len(rows)))

    def _compare(self, left: int, weights: Tensor, visible: Tensor | None) -> None:
        high, wide = weights.shape[-2:]
        own = self.numbers.queries[self.top : self.top + high, None]
        same = own == self.numbers.keys[None, left : left + wide]
        self.weights.add_((weights * same).sum(-1))
        self.counts.add_((same if visible is None else same & visible).sum(-1))


def _of_batch(seen: Tensor, batch: int) -> Tensor:
    """Of a mask (batch or 1, heads or 1, rows, columns) or (rows, columns), what one batch row sees."""
    return seen if seen.dim() == 2 else seen[batch if seen.shape[0] > 1 else 0]


def _checked(given: Tensor, batch: int, count: int, device: torch.device) -> Tensor:
    """Numbers as (batch, count)."""
    if given.is_floating_point() or given.shape not in ((count,), (batch, count)):
        raise ShapeError(
            f"pairings: wants whole numbers ({count},) or ({batch}, {count}), got {tuple(given.shape)} {given.dtype}"
        )
    return given.to(device=device, dtype=torch.long).expand(batch, count)
