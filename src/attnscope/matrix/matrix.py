"""`AttentionMatrix`: the n x n matrix of attention weights, to be read and reduced, and never built.

It holds query, key and, once asked, the row normalisers. `A[b, h, queries, keys]` and `A[..., queries, keys]` read
weights as they would from a tensor of the same shape; `.batch(b)` and `.head(h)` take a leading axis away and stay
lazy. Leading axes stand first in every result. Results are fp32 (fp64 for fp64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.masks import Full
from attnscope.attention.plan import format_bytes
from attnscope.attention.scores import ScoreMod
from attnscope.attention.spec import make_spec, signature_of, to_4d
from attnscope.errors import ShapeError, UnsupportedError
from attnscope.matrix import pooling, statistics
from attnscope.matrix.bins import Bins, find_bins
from attnscope.matrix.held import Held
from attnscope.matrix.indexing import Index, choose
from attnscope.matrix.sampling import Sample, sample
from attnscope.matrix.schedule import Schedule, ranges
from attnscope.matrix.scored import Scored
from attnscope.matrix.summary import Summary, summarize
from attnscope.matrix.views import Merged, Readable, Weighted, undisturbed, writing_norms


class Distance(NamedTuple):
    """How far back each row looks: the mean, and the standard deviation around it, in tokens."""

    mean: Tensor
    spread: Tensor


class TopKeys(NamedTuple):
    """The largest weights of each row and their keys; 0 and -1 where a row sees fewer."""

    weights: Tensor
    keys: Tensor


class AttentionMatrix(Readable):
    """softmax(scale * query @ key^T over the keys that the mask allows), in O(n) memory.

    query (..., heads, queries, dim) and key (..., key heads, keys, dim); `value` (..., key heads, keys, value dim) is
    only kept for `weighted`. `lse` (..., heads, queries) are the row normalisers where they are known already, as from
    `attend(..., return_lse=True)`; they are not verified. The tensors are not copied: do not change them in place.

    >>> matrix = AttentionMatrix(torch.eye(4), torch.eye(4), scale=1.0)
    >>> matrix
    AttentionMatrix(4 x 4, holds 128 bytes, dense 64 bytes)
    >>> matrix[0, :2]
    tensor([0.4754, 0.1749])
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        score_mod: ScoreMod | None = None,
        value: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> None:
        mask = Full() if mask is None else mask
        rule = make_spec(signature_of(query, key, key), mask=mask, scale=scale, score_mod=score_mod, dropout=0.0)
        if value is not None and value.shape[:-1] != key.shape[:-1]:
            raise ShapeError(f"AttentionMatrix: value {tuple(value.shape)} does not go with key {tuple(key.shape)}")
        if lse is not None and lse.shape != query.shape[:-1]:
            raise ShapeError(f"AttentionMatrix: lse {tuple(lse.shape)} does not go with query {tuple(query.shape)}")
        held_lse = None if lse is None else to_4d(lse.detach()[..., None])[..., 0].to(rule.compute_dtype)
        self._source: Scored | Held = Scored(rule, to_4d(query.detach()), to_4d(key.detach()), held_lse)
        self._value = None if value is None else to_4d(value.detach())
        self._axes, self._leading = _axes_of(query), tuple(query.shape[:-2])
        self._schedule = Schedule()

    @classmethod
    def from_dense(cls, weights: Tensor) -> AttentionMatrix:
        """A matrix from weights (..., queries, keys) that are already there; no softmax is taken."""
        if weights.dim() < 2 or not weights.is_floating_point():
            raise ShapeError(
                f"from_dense: wants weights (..., queries, keys), got {tuple(weights.shape)} {weights.dtype}"
            )
        if weights.numel() and weights.min() < 0:
            raise ValueError(f"from_dense: weights cannot be negative, the smallest is {weights.min():.3g}")
        matrix = cls.__new__(cls)
        matrix._source = Held(to_4d(weights.detach()))
        matrix._axes, matrix._leading = _axes_of(weights), tuple(weights.shape[:-2])
        matrix._value, matrix._schedule = None, Schedule()
        return matrix

    @property
    def shape(self) -> torch.Size:
        """(..., queries, keys)."""
        return torch.Size((*self._leading, *self._source.sizes[2:]))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the leading axes that are left: of "batch" and "head"."""
        return self._axes

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all results: fp32, or fp64 for fp64."""
        return self._source.dtype

    @property
    def device(self) -> torch.device:
        """Where query and key are, and results will be."""
        return self._source.device

    @property
    def nbytes(self) -> int:
        """Bytes that are held: query, key, value, row normalisers once computed, masks and biases."""
        return self._source.nbytes + (0 if self._value is None else self._value.nbytes)

    @property
    def dense_nbytes(self) -> int:
        """Bytes that the dense matrix would take."""
        return math.prod(self.shape) * self._source.dtype.itemsize

    def __repr__(self) -> str:
        lines = " x ".join(f"{size:,}" for size in self.shape[-2:])
        leading = f", leading {self._leading}" if self._leading else ""
        held, dense = format_bytes(self.nbytes), format_bytes(self.dense_nbytes)
        return f"AttentionMatrix({lines}{leading}, holds {held}, dense {dense})"

    def to(
        self,
        *args: torch.device | str | torch.dtype,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> AttentionMatrix:
        """The matrix with its tensors on a device, in a floating dtype, or both; arguments as for `Tensor.to`.

        In another dtype, query and key are rounded and the row normalisers are computed again.

        >>> AttentionMatrix(torch.eye(4), torch.eye(4)).to("cpu", torch.float64).dtype
        torch.float64
        """
        for one in args:
            device, dtype = (device, one) if isinstance(one, torch.dtype) else (one, dtype)
        place = self.device if device is None else torch.device(device)
        kind = self._source.stored_dtype if dtype is None else dtype
        if not kind.is_floating_point:
            raise TypeError(f"to({kind}): attention weights need a floating dtype")
        moved = copy(self)
        moved._source = self._source.to(place, kind)
        moved._value = None if self._value is None else self._value.to(place, kind)
        return moved

    def cpu(self) -> AttentionMatrix:
        """The matrix with its tensors in main memory."""
        return self.to("cpu")

    def batch(self, index: int) -> AttentionMatrix:
        """One batch row; its axis goes away."""
        return self._narrowed("batch", index)

    def head(self, index: int) -> AttentionMatrix:
        """One head; its axis goes away."""
        return self._narrowed("head", index)

    def _at_axis(self, at: int, index: int) -> AttentionMatrix:
        return self._narrowed(self._axes[at], index)

    def _narrowed(self, axis: str, index: int) -> AttentionMatrix:
        if axis not in self._axes:
            raise ShapeError(f"{axis}({index}): this matrix has the leading axes {self._axes}, none of them a {axis}")
        at = self._axes.index(axis)
        count = self._leading[at]
        if not -count <= index < count:
            raise IndexError(f"{axis}({index}): there are {count} of them")
        one = slice(index % count, index % count + 1)
        batch, heads = slice(0, self._source.sizes.batch), slice(0, self._source.sizes.heads)
        batch, heads = (one, heads) if axis == "batch" else (batch, one)
        narrowed = copy(self)
        narrowed._source = self._source.narrow(batch, heads)
        narrowed._value = None if self._value is None else self._narrowed_value(batch, heads)
        narrowed._axes = self._axes[:at] + self._axes[at + 1 :]
        narrowed._leading = self._leading[:at] + self._leading[at + 1 :]
        return narrowed

    def _narrowed_value(self, batch: slice, heads: slice) -> Tensor:
        assert self._value is not None
        group = self._source.sizes.heads // self._value.shape[1]
        return self._value[batch, heads.start // group : (heads.stop - 1) // group + 1]

    def planned(
        self,
        *,
        budget: int | None = None,
        progress: Callable[[float], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> AttentionMatrix:
        """The same matrix with work cut to a memory budget in bytes, with progress (0 ... 1) and a way to stop.

        `cancelled` is asked between steps, several times a second; when it says True, `Cancelled` is raised.
        """
        planned = copy(self)
        planned._schedule = replace(
            self._schedule,
            budget=self._schedule.budget if budget is None else budget,
            progress=progress or self._schedule.progress,
            cancelled=cancelled or self._schedule.cancelled,
        )
        return planned

    @undisturbed
    def at(self, rows: Index, columns: Index) -> Tensor:
        """The weights of scattered cells (rows[p], columns[p]), (..., pairs)."""
        device, (queries, keys) = self._source.device, self.shape[-2:]
        first = choose(rows, queries, device, "rows").positions
        second = choose(columns, keys, device, "columns").positions
        if len(first) != len(second):
            raise ShapeError(f"at: wants as many rows as columns, got {len(first)} and {len(second)}")
        self._hold_lse_for(len(first))
        batch, heads = self._source.sizes[:2]
        at_once = max(1, self._schedule.budget // max(4 * self._source.pair_bytes * batch * heads, 1))
        found = [
            self._source.pairs(first[some.start : some.stop], second[some.start : some.stop])
            for some in ranges(len(first), at_once)
        ]
        return self._shaped(torch.cat(found, -1))

    def diagonal(self, offset: int = 0) -> Tensor:
        """The weights A[i, i + offset], as torch.diagonal has them; -1 is the previous token."""
        queries, keys = self.shape[-2:]
        rows = torch.arange(max(0, -offset), max(min(queries, keys - offset), max(0, -offset)))
        return self.at(rows, rows + offset)

    def band(self, width: int) -> Tensor:
        """The weights on the `width` keys up to the query's position, (..., queries, width); 0 where there is none."""
        queries, keys = self.shape[-2:]
        if not keys:
            return torch.zeros(*self._leading, queries, width, dtype=self.dtype, device=self.device)
        rows = torch.arange(queries)[:, None].expand(-1, width)
        columns = rows + keys - queries - width + 1 + torch.arange(width)
        outside = (columns < 0) | (columns >= keys)
        found = self.at(rows.flatten(), columns.clamp(0, keys - 1).flatten())
        return found.reshape(*self._leading, queries, width).masked_fill(outside.to(found.device), 0.0)

    @property
    @undisturbed
    def lse(self) -> Tensor:
        """A copy of the row normalisers, (..., queries): natural logarithms, -inf for rows without keys."""
        if isinstance(self._source, Held):
            raise UnsupportedError("lse: a matrix made from_dense has weights and no scores, so it has no normalisers")
        return self._shaped(self._source.lse(self._schedule)).clone()

    @undisturbed
    def entropy(self, *, exact: bool = False) -> Tensor:
        """The Shannon entropy of each row in nats, (..., queries).

        On the fused road it is the difference of two numbers of the size of lse and off by about eps times that;
        `exact` sums it up block by block.
        """
        return self._shaped(statistics.entropy(self._source, self._schedule, exact=exact))

    @undisturbed
    def renyi(self, order: float = 2.0) -> Tensor:
        """The Rényi entropy of each row, log(sum of weights^order) / (1 - order); 0 for rows without keys."""
        if order <= 0 or order == 1:
            raise ValueError(f"renyi({order}): the order is positive and not 1, where it becomes entropy()")
        found = self._shaped(statistics.collision(self._source, self._schedule, order)) / (1 - order)
        return found.masked_fill(found.isinf(), 0.0)

    @undisturbed
    def effective_keys(self) -> Tensor:
        """How many keys each row spreads over, 1 / sum of weights^2; 0 for rows without keys."""
        found = self._shaped(statistics.collision(self._source, self._schedule, 2.0))
        return torch.exp(-found).masked_fill(found == -math.inf, 0.0)

    @undisturbed
    def received(self) -> Tensor:
        """What each key receives from all queries together, (..., keys)."""
        return self._shaped(statistics.received(self._source, self._schedule))

    @undisturbed
    def mass(self, where: Index) -> Tensor:
        """The weight of each row on a set of keys, given by their positions or a boolean for each, (..., queries)."""
        keys = self.shape[-1]
        inside = torch.zeros(keys, dtype=self._source.dtype, device=self._source.device)
        inside[choose(where, keys, self._source.device, "columns").positions] = 1.0
        return self @ inside

    @undisturbed
    def distance(self) -> Distance:
        """How far back each row looks; a query stands at the end of the keys where there are fewer queries."""
        mean, spread = statistics.distance(self._source, self._schedule, self.shape[-1] - self.shape[-2])
        return Distance(self._shaped(mean), self._shaped(spread))

    @undisturbed
    def topk(self, count: int) -> TopKeys:
        """The strongest keys of each row, (..., queries, count), largest first."""
        weights, keys = statistics.topk(self._source, count, self._schedule)
        return TopKeys(self._shaped(weights), self._shaped(keys))

    @undisturbed
    def max(self) -> Tensor:
        """The largest weight of each row, (..., queries)."""
        if not self.shape[-1]:
            return torch.zeros(self.shape[:-1], dtype=self.dtype, device=self.device)
        return self.topk(1).weights.squeeze(-1)

    @undisturbed
    def visible(self, rows: int, columns: int) -> Tensor:
        """How many cells of each bin of `pooled` the mask allows, (..., rows, columns)."""
        return self._shaped(pooling.visible(self._source, *self._edges(rows, columns), self._schedule))

    @undisturbed
    def bins(self, row_edges: Sequence[int], column_edges: Sequence[int], *, each: int | None = None) -> Bins:
        """Sum, count and maximum of the cells between any edges of rows and columns, at any scale, in one walk.

        Edges rise and need not begin at 0 nor end with the matrix: `bins(range(512, 769), range(257))` are 256 x 256
        cells as they are. With `each`, only so many evenly spread rows of each bin are looked at.
        """
        found = find_bins(self._source, row_edges, column_edges, each, self._schedule)
        return Bins(*(self._shaped(part) for part in found))

    @undisturbed
    def sample(self, rows: int, columns: int, *, each: int = 4) -> Sample:
        """An estimate of `pooled(rows, columns)` from `each` rows of every bin of rows, with its standard error."""
        found = sample(self._source, *self._edges(rows, columns), each, self._schedule)
        return Sample(*(self._shaped(part) for part in found))

    @undisturbed
    def summary(
        self,
        rows: int | Sequence[int] = 64,
        columns: int | Sequence[int] = 64,
        *,
        pairings: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> Summary:
        """Every statistic of every row and column and `pooled(rows, columns)`, in one walk: much cheaper than apart.

        Bins are as many as `rows` and `columns` say, or lie between the edges that they list. A pairing gives a whole
        number to each query and to each key, (queries,) and (keys,) or with the batch before: `matched` is the weight
        of each row on the keys that have its own number. With ids of tokens, that is the weight on the same token.
        """
        queries, keys = self.shape[-2:]
        row_edges = pooling.even_edges(queries, rows) if isinstance(rows, int) else rows
        column_edges = pooling.even_edges(keys, columns) if isinstance(columns, int) else columns
        found = summarize(self._source, row_edges, column_edges, self._schedule, pairings)
        return Summary(*(self._shaped(part) for part in found))

    @undisturbed
    def weighted(self, output: Tensor | None = None) -> Weighted:
        """Weights times the length of what each key would write: the norm of its value, through `output` if given.

        `output` is the output projection of each head, (heads, value dim, model dim).
        """
        if self._value is None:
            raise ShapeError("weighted: this matrix was made without value=, so what keys write is not known")
        return Weighted(self, writing_norms(self._value, output, self._source.sizes.heads))

    def merged(self, spans: Sequence[tuple[int, int]], key_spans: Sequence[tuple[int, int]] | None = None) -> Merged:
        """Tokens merged into words, given as (start, stop) spans: mean over a word's queries, sum over its keys."""
        return Merged(self, spans, spans if key_spans is None else key_spans)

    @property
    def _batch_and_heads(self) -> tuple[int, int]:
        return self._source.sizes.batch, self._source.sizes.heads

    def _edges(self, rows: int, columns: int) -> tuple[list[int], list[int]]:
        queries, keys = self.shape[-2:]
        return pooling.even_edges(queries, rows), pooling.even_edges(keys, columns)

    def _pooled(self, rows: int, columns: int, how: str) -> Tensor:
        return pooling.pool(self._source, *self._edges(rows, columns), how, self._schedule)

    def _block(self, rows: Tensor, columns: Tensor) -> Tensor:
        if len(columns) < self.shape[-1]:  # whole rows bring their own normalisers
            self._hold_lse_for(len(rows))
        return self._source.block(rows, columns)

    def _hold_lse_for(self, rows: int) -> None:
        """Where many rows are asked for, all normalisers are worth keeping."""
        if 4 * rows > self.shape[-2]:
            statistics.need_lse(self._source, self._schedule)

    def _times(self, values: Tensor) -> Tensor:
        return statistics.times(self._source, self._shared(values), self._schedule)

    def _transposed_times(self, values: Tensor) -> Tensor:
        return statistics.transposed_times(self._source, values, self._schedule)

    def _shared(self, values: Tensor) -> Tensor:
        """Values that are the same for all heads, as few times as the keys need them."""
        if isinstance(self._source, Held) or values.stride(1) or values.shape[1] == 1:
            return values
        return values[:, : self._source.rule.num_kv_heads]


def _axes_of(tensor: Tensor) -> tuple[str, ...]:
    """The names of the axes before the last two."""
    if tensor.dim() > 4:
        raise ShapeError(
            f"AttentionMatrix: takes (batch, head, ...) and no more leading axes, got {tuple(tensor.shape)}"
        )
    return ("batch", "head")[4 - tensor.dim() :]
