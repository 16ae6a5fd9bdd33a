"""Traces of chosen queries and keys, and their weights in double precision, found in the plainest way there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attention import Causal, Full
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer

Values = NDArray[np.float64]
AT_ONCE = 64  # rows of a long matrix


class Synthetic(NamedTuple):
    """A head of given queries and keys, (position, dim)."""

    query: Tensor
    key: Tensor
    causal: bool = True

    @property
    def queries(self) -> int:
        """How many rows there are."""
        return len(self.query)

    @property
    def keys(self) -> int:
        """How many columns there are."""
        return len(self.key)

    def trace(self) -> Trace:
        """One layer of this one head."""
        return trace_of([[self]])

    def rows(self, places: range | list[int]) -> Values:
        """The weights of some rows; NaN where the mask hides a cell."""
        last = np.array(places)[:, None] + (self.keys - self.queries if self.causal else self.keys)
        seen = min(int(last.max()) + 1, self.keys)
        query, key = self.query[list(places)].double().numpy(), self.key[:seen].double().numpy()
        scores = query @ (key.T / np.sqrt(query.shape[1]))
        hidden = np.arange(seen)[None, :] > last
        scores[hidden] = -np.inf
        powers = np.exp(scores - scores.max(1, keepdims=True))
        powers /= powers.sum(1, keepdims=True)
        powers[hidden] = np.nan
        return np.pad(powers, ((0, 0), (0, self.keys - seen)), constant_values=np.nan)

    def pooled(self, stride: int, band: int) -> tuple[Values, Values]:
        """Mean and maximum over the allowed cells of each bin of one row of bins; NaN where there is none."""
        starts = np.arange(0, self.keys, stride)
        total, cells, largest = np.zeros(len(starts)), np.zeros(len(starts)), np.full(len(starts), -1.0)
        for rows in self._some(band * stride, min((band + 1) * stride, self.queries)):
            seen = ~np.isnan(rows)
            known = np.where(seen, rows, 0.0)
            total += np.add.reduceat(known, starts, 1).sum(0)
            cells += np.add.reduceat(seen.astype(np.float64), starts, 1).sum(0)
            largest = np.maximum(largest, np.maximum.reduceat(np.where(seen, rows, -1.0), starts, 1).max(0))
        none = cells == 0
        return np.where(none, np.nan, total / np.where(none, 1.0, cells)), np.where(none, np.nan, largest)

    def _some(self, start: int, stop: int) -> Iterator[Values]:
        for first in range(start, stop, AT_ONCE):
            yield self.rows(range(first, min(first + AT_ONCE, stop)))


def random_head(
    queries: int, keys: int | None = None, *, dim: int = 8, causal: bool = True, seed: int = 0
) -> Synthetic:
    """A head whose weights go over many octaves."""
    chance = torch.Generator().manual_seed(seed)
    query = torch.randn(queries, dim, generator=chance) * 2
    return Synthetic(query, torch.randn(keys or queries, dim, generator=chance), causal)


def trace_of(heads: list[list[Synthetic]]) -> Trace:
    """A trace of layers of heads of one size."""
    trace = Trace("synthetic")
    for place, layer in enumerate(heads):
        query, key = (torch.stack(parts)[None] for parts in zip(*(head[:2] for head in layer), strict=True))
        first = layer[0]
        mask = Causal() if first.causal else Full()
        call = Call(query=query, key=key, value=None, mask=mask, scale=None)
        name = f"layers.{place}"
        trace.layers[name] = Layer(name, call, cross=first.queries != first.keys)
    return trace


def planted_head(
    length: int, links: int, *, dim: int = 64, strength: float = 13.5
) -> tuple[Synthetic, list[list[int]]]:
    """A diffuse causal head in which some queries look at one key each, and those (query, key) pairs."""
    chance = torch.Generator().manual_seed(1)
    key = torch.nn.functional.normalize(torch.randn(length, dim, generator=chance), dim=-1)
    query = torch.randn(length, dim, generator=chance)
    rows = torch.randperm(length - 64, generator=chance)[:links] + 64
    columns = (torch.rand(links, generator=chance) * (rows - 32)).long()
    query[rows] = key[columns] * strength * dim**0.5
    return Synthetic(query, key), torch.stack([rows, columns], 1).tolist()
