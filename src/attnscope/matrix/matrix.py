"""`AttentionMatrix`: the n x n matrix of attention weights, computed when you index or reduce it.

It stores query, key and, once they are needed, the log-sum-exp (lse) of each row. `A[b, h, queries, keys]` and
`A[..., queries, keys]` read weights as from a tensor of that shape; `.batch(b)` and `.head(h)` select along a leading
axis without computing weights. Results have the leading axes of the matrix, and are fp32 (fp64 for fp64 inputs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from attnscope.attention.algebra import Mask
from attnscope.attention.masks import Full
from attnscope.attention.scores import ScoreMod
from attnscope.attention.spec import make_spec, signature_of, to_4d
from attnscope.attention.transfers import to_device
from attnscope.errors import ShapeError, UnsupportedError
from attnscope.formatting import format_bytes
from attnscope.matrix import pooling, statistics
from attnscope.matrix.bins import Bins, find_bins
from attnscope.matrix.dense_weights import DenseWeights
from attnscope.matrix.indexing import Index, resolve_index
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.logits import MaxLogit, RowLogits, max_logit, row_logits, with_logits
from attnscope.matrix.positions import Positions
from attnscope.matrix.sampling import Sample, sample
from attnscope.matrix.schedule import Schedule, ranges
from attnscope.matrix.statistics import Distance, TopKeys
from attnscope.matrix.summary import Summary, summarize
from attnscope.matrix.views import MatrixView, MergedTokens, ValueWeighted, no_grad_no_autocast, value_norms
from attnscope.matrix.visible_cells import count_visible
from attnscope.matrix.weight_terms import WeightTerms, weight_terms

SUMMARY_BINS = 64  # of a summary, along each axis


class AttentionMatrix(MatrixView):
    """Attention weights softmax(scale * query @ key^T) under a mask, in O(n) memory.

    The tensors are not copied: do not change them in place.

    Args:
        query: (..., heads, queries, dim), with at most one batch axis in front.
        key: (..., key heads, keys, dim).
        mask: which keys each query may attend to; all of them by default.
        scale: factor of the scores; 1 / sqrt(dim) by default.
        score_mod: changes the scores before the softmax, for example `Softcap` or `ALiBi`.
        value: (..., key heads, keys, value dim), used by `value_weighted` only.
        lse: log-sum-exp of each row, (..., heads, queries), if it is known, as from `attend(..., return_lse=True)`. It
            is not verified.

    Raises:
        ShapeError: the shapes do not fit together.

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
        spec = make_spec(signature_of(query, key, key), mask=mask, scale=scale, score_mod=score_mod, dropout=0.0)
        if value is not None and value.shape[:-1] != key.shape[:-1]:
            raise ShapeError(f"AttentionMatrix: expected value {(*key.shape[:-1], 'dim')}, got {tuple(value.shape)}")
        if lse is not None and lse.shape != query.shape[:-1]:
            raise ShapeError(f"AttentionMatrix: expected lse {tuple(query.shape[:-1])}, got {tuple(lse.shape)}")
        cached_lse = None if lse is None else to_4d(lse.detach()[..., None])[..., 0].to(spec.compute_dtype)
        self._source: LazyWeights | DenseWeights = LazyWeights(
            spec, to_4d(query.detach()), to_4d(key.detach()), cached_lse
        )
        self._value = None if value is None else to_4d(value.detach())
        self._axes, self._leading = _axes_of(query), tuple(query.shape[:-2])
        self._schedule = Schedule()

    @classmethod
    def from_dense(cls, weights: Tensor) -> AttentionMatrix:
        """Wrap existing attention weights.

        Args:
            weights: (..., queries, keys), not negative. Zeros count as masked.

        Raises:
            ShapeError: not a floating tensor of at least two dimensions.
            ValueError: a weight is negative.

        >>> AttentionMatrix.from_dense(torch.eye(3)).entropy()
        tensor([0., 0., 0.])
        """
        if weights.dim() < 2 or not weights.is_floating_point():
            raise ShapeError(
                f"from_dense: expected float weights (..., queries, keys), got {tuple(weights.shape)} {weights.dtype}"
            )
        if weights.numel() and weights.min() < 0:
            raise ValueError(f"from_dense: expected weights of at least 0, got {weights.min():.3g}")
        matrix = cls.__new__(cls)
        matrix._source = DenseWeights(to_4d(weights.detach()))
        matrix._axes, matrix._leading = _axes_of(weights), tuple(weights.shape[:-2])
        matrix._value, matrix._schedule = None, Schedule()
        return matrix

    @property
    def shape(self) -> torch.Size:
        """(..., queries, keys)."""
        return torch.Size((*self._leading, *self._source.sizes[2:]))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the leading axes: "batch" and "head", or those that were not selected yet."""
        return self._axes

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all results: fp32, or fp64 for fp64."""
        return self._source.dtype

    @property
    def device(self) -> torch.device:
        """The device of the stored tensors and of all results."""
        return self._source.device

    @property
    def nbytes(self) -> int:
        """Bytes of the stored tensors: query, key, value, lse once computed, masks and biases."""
        return self._source.nbytes + (0 if self._value is None else self._value.nbytes)

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the dense matrix."""
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
        """Move the stored tensors to a device, a floating dtype, or both; arguments as for `Tensor.to`.

        In another dtype, query and key are rounded and lse is computed again.

        Args:
            *args: A device, a dtype, or both.
            device: The device.
            dtype: The dtype.

        Returns:
            The same matrix there.

        Raises:
            TypeError: The dtype is not a floating dtype.

        >>> AttentionMatrix(torch.eye(4), torch.eye(4)).to("cpu", torch.float64).dtype
        torch.float64
        """
        for one in args:
            device, dtype = (device, one) if isinstance(one, torch.dtype) else (one, dtype)
        place = self.device if device is None else torch.device(device)
        kind = self._source.stored_dtype if dtype is None else dtype
        if not kind.is_floating_point:
            raise TypeError(f"to({kind}): expected a floating dtype")
        moved = copy(self)
        moved._source = self._source.to(place, kind)
        moved._value = None if self._value is None else self._value.to(place, kind)
        return moved

    def cpu(self) -> AttentionMatrix:
        """Move the stored tensors to main memory."""
        return self.to("cpu")

    def batch(self, index: int) -> AttentionMatrix:
        """Select one batch row; the result has no batch axis.

        Args:
            index: The index of a batch row.

        Returns:
            Its attention weights.
        """
        return self._narrow("batch", index)

    def head(self, index: int) -> AttentionMatrix:
        """Select one head; the result has no head axis.

        Args:
            index: The index of a head.

        Returns:
            Its attention weights.
        """
        return self._narrow("head", index)

    def _select(self, at: int, index: int) -> AttentionMatrix:
        return self._narrow(self._axes[at], index)

    def _narrow(self, axis: str, index: int) -> AttentionMatrix:
        if axis not in self._axes:
            raise ShapeError(f"{axis}({index}): this matrix has no {axis} axis; its leading axes are {self._axes}")
        at = self._axes.index(axis)
        count = self._leading[at]
        if not -count <= index < count:
            raise IndexError(f"{axis}({index}): expected an index below {count}")
        one = slice(index % count, index % count + 1)
        batch, heads = slice(0, self._source.sizes.batch), slice(0, self._source.sizes.heads)
        batch, heads = (one, heads) if axis == "batch" else (batch, one)
        narrowed = copy(self)
        narrowed._source = self._source.narrow(batch, heads)
        narrowed._value = None if self._value is None else self._narrow_value(batch, heads)
        narrowed._axes = self._axes[:at] + self._axes[at + 1 :]
        narrowed._leading = self._leading[:at] + self._leading[at + 1 :]
        return narrowed

    def _narrow_value(self, batch: slice, heads: slice) -> Tensor:
        assert self._value is not None
        group = self._source.sizes.heads // self._value.shape[1]
        return self._value[batch, heads.start // group : (heads.stop - 1) // group + 1]

    def with_options(
        self,
        *,
        max_bytes: int | None = None,
        progress: Callable[[float], object] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> AttentionMatrix:
        """The same matrix with a memory limit, progress reports and cancellation.

        Args:
            max_bytes: memory that one step of a computation may use; at least 2**20.
            progress: called with the completed fraction, 0 ... 1.
            should_stop: called between steps, several times per second; True stops the computation with `Cancelled`.

        >>> fractions = []
        >>> matrix = AttentionMatrix(torch.eye(4), torch.eye(4)).with_options(progress=fractions.append)
        >>> _ = matrix.entropy()
        >>> fractions[-1]
        1.0
        """
        changed = copy(self)
        changed._schedule = replace(
            self._schedule,
            max_bytes=self._schedule.max_bytes if max_bytes is None else max_bytes,
            progress=progress or self._schedule.progress,
            should_stop=should_stop or self._schedule.should_stop,
        )
        return changed

    @no_grad_no_autocast
    def at(self, rows: Index, columns: Index) -> Tensor:
        """The weights of single cells (rows[p], columns[p]).

        Args:
            rows: The queries, as an index of one axis.
            columns: The keys, as many as queries.

        Returns:
            (..., pairs).

        Raises:
            ShapeError: There are not as many rows as columns.
        """
        device, (queries, keys) = self._source.device, self.shape[-2:]
        first = resolve_index(rows, queries, device, "rows").positions
        second = resolve_index(columns, keys, device, "columns").positions
        if len(first) != len(second):
            raise ShapeError(f"at: expected as many rows as columns, got {len(first)} and {len(second)}")
        self._ensure_lse_for(len(first))
        batch, heads = self._source.sizes[:2]
        at_once = max(1, self._schedule.limit(device) // max(4 * self._source.bytes_per_pair * batch * heads, 1))
        found = [
            self._source.pairs(first[some.start : some.stop], second[some.start : some.stop])
            for some in ranges(len(first), at_once)
        ]
        return self._reshape(torch.cat(found, -1))

    def diagonal(self, offset: int = 0) -> Tensor:
        """The weights A[i, i + offset], as `torch.diagonal`; an offset of -1 is the previous token.

        Args:
            offset: Key position minus query position.

        Returns:
            (..., diagonal length).
        """
        queries, keys = self.shape[-2:]
        rows = torch.arange(max(0, -offset), max(min(queries, keys - offset), max(0, -offset)))
        return self.at(rows, rows + offset)

    def band(self, width: int) -> Tensor:
        """The weights on the last `width` keys up to the position of each query.

        Args:
            width: The number of keys per query.

        Returns:
            (..., queries, width), with 0 where there is no key.
        """
        queries, keys = self.shape[-2:]
        if not keys:
            return torch.zeros(*self._leading, queries, width, dtype=self.dtype, device=self.device)
        rows = torch.arange(queries)[:, None].expand(-1, width)
        columns = rows + keys - queries - width + 1 + torch.arange(width)
        outside = (columns < 0) | (columns >= keys)
        found = self.at(rows.flatten(), columns.clamp(0, keys - 1).flatten())
        return found.reshape(*self._leading, queries, width).masked_fill(to_device(outside, found.device), 0.0)

    @property
    @no_grad_no_autocast
    def lse(self) -> Tensor:
        """A copy of the log-sum-exp of each row, (..., queries): natural logarithm, -inf for rows without keys."""
        if isinstance(self._source, DenseWeights):
            raise UnsupportedError("lse: a matrix made by from_dense has no scores, so it has no log-sum-exp")
        return self._reshape(self._source.lse(self._schedule)).clone()

    @no_grad_no_autocast
    def entropy(self, *, exact: bool = False) -> Tensor:
        """The Shannon entropy of each row in nats.

        Args:
            exact: sum block by block. By default the fused path subtracts two numbers as large as lse, with a rounding
                error of about eps times that.

        Returns:
            (..., queries), 0 for rows without keys.

        >>> AttentionMatrix(torch.zeros(2, 1), torch.zeros(8, 1)).entropy()
        tensor([2.0794, 2.0794])
        """
        return self._reshape(statistics.entropy(self._source, self._schedule, exact=exact))

    @no_grad_no_autocast
    def renyi_entropy(self, order: float = 2.0) -> Tensor:
        """The Rényi entropy of each row, log(sum of weights^order) / (1 - order).

        Args:
            order: positive and not 1, where the limit is `entropy`.

        Returns:
            (..., queries), 0 for rows without keys.

        Raises:
            ValueError: The order is not positive, or is 1.
        """
        if order <= 0 or order == 1:
            raise ValueError(
                f"renyi_entropy: expected a positive order other than 1, got {order}; order 1 is entropy()"
            )
        found = self._reshape(statistics.log_power_sum(self._source, self._schedule, order)) / (1 - order)
        return found.masked_fill(found.isinf(), 0.0)

    @no_grad_no_autocast
    def effective_keys(self) -> Tensor:
        """The effective number of keys of each row, 1 / sum of weights^2, (..., queries); 0 for rows without keys."""
        found = self._reshape(statistics.log_power_sum(self._source, self._schedule, 2.0))
        return torch.exp(-found).masked_fill(found == -math.inf, 0.0)

    @no_grad_no_autocast
    def received(self) -> Tensor:
        """The attention that each key receives: the column sums, (..., keys)."""
        return self._reshape(statistics.received(self._source, self._schedule))

    @no_grad_no_autocast
    def mass(self, where: Index) -> Tensor:
        """The total weight of each row on a set of keys.

        Args:
            where: positions of keys, or one boolean per key.

        Returns:
            (..., queries).
        """
        keys, device = self.shape[-1], self._source.device
        if isinstance(where, Tensor) and where.dtype == torch.bool and where.shape == (keys,):
            return self @ where.to(self._source.dtype)  # without asking which of them are True
        inside = torch.zeros(keys, dtype=self._source.dtype, device=device)
        inside[resolve_index(where, keys, device, "columns").positions.index] = 1.0
        return self @ inside

    @no_grad_no_autocast
    def distance(self) -> Distance:
        """The mean and standard deviation of query position - key position under each row's weights.

        With fewer queries than keys, the last query has the position of the last key.
        """
        mean, std = statistics.distance(self._source, self._schedule, self.shape[-1] - self.shape[-2])
        return Distance(self._reshape(mean), self._reshape(std))

    @no_grad_no_autocast
    def topk(self, count: int) -> TopKeys:
        """The keys with the largest weights of each row.

        Args:
            count: The number of keys per query.

        Returns:
            Weights and key positions, each (..., queries, count), the largest weight first.
        """
        weights, keys = statistics.topk(self._source, count, self._schedule)
        return TopKeys(self._reshape(weights), self._reshape(keys))

    @no_grad_no_autocast
    def max(self) -> Tensor:
        """The largest weight of each row, (..., queries)."""
        return self._reshape(statistics.largest(self._source, self._schedule))

    @no_grad_no_autocast
    def max_logit(self) -> MaxLogit:
        """The largest logit of each head, and the query and key that have it.

        A logit is a score as the softmax takes it: scaled, changed by `score_mod`, and allowed by the mask. Logits that
        grow while a model trains make training unstable (arXiv 2302.05442).

        Returns:
            Tensors with the leading axes of the matrix.

        Raises:
            UnsupportedError: the matrix was made by `from_dense`.

        >>> key = torch.eye(4).roll(1, dims=0) * torch.arange(1.0, 5.0)[:, None]
        >>> AttentionMatrix(torch.eye(4), key, scale=1.0).max_logit()
        MaxLogit(logits=tensor(4.), queries=tensor(2), keys=tensor(3))
        """
        found = max_logit(self._source, self._schedule)
        return MaxLogit(*(self._reshape(part) for part in found))

    @no_grad_no_autocast
    def row_logits(self) -> RowLogits:
        """The largest logit, entropy, effective keys and weight on the first key of each row, in one pass.

        Raises:
            UnsupportedError: the matrix was made by `from_dense`.
        """
        found = row_logits(with_logits(self._source, "row_logits"), self._schedule)
        return RowLogits(*(self._reshape(part) for part in found))

    @no_grad_no_autocast
    def weight_terms(self, query: int, key: int) -> WeightTerms:
        """How one weight of one head is computed: q.k by dimension, scale, score, mask and log-sum-exp.

        Args:
            query: position of the query.
            key: position of the key.

        Raises:
            ShapeError: the matrix has more than one head; select one with `.head(h)`.
            UnsupportedError: the matrix was made by `from_dense`.
            IndexError: there is no such query or key.

        >>> matrix = AttentionMatrix(torch.eye(4), torch.eye(4), scale=1.0)
        >>> terms = matrix.weight_terms(0, 0)
        >>> terms.products.tolist(), terms.score, round(terms.weight, 4)
        ([1.0, 0.0, 0.0, 0.0], 1.0, 0.4754)
        """
        if self._leading:
            raise ShapeError(f"weight_terms: expected the matrix of one head, got leading axes {self._axes}")
        for name, position, count in zip(("query", "key"), (query, key), self.shape, strict=True):
            if not 0 <= position < count:
                raise IndexError(f"weight_terms: expected a {name} from 0 to {count - 1}, got {position}")
        return weight_terms(with_logits(self._source, "weight_terms"), query, key)

    @no_grad_no_autocast
    def visible_cells(self, rows: int, columns: int) -> Tensor:
        """The number of cells that the mask allows in each bin of `pool(rows, columns)`, (..., rows, columns).

        Args:
            rows: The number of row bins.
            columns: The number of column bins.

        Returns:
            Integers (..., rows, columns).
        """
        return self._reshape(count_visible(self._source, *self._edges(rows, columns), self._schedule))

    @no_grad_no_autocast
    def bins(
        self,
        row_edges: Sequence[int],
        column_edges: Sequence[int],
        *,
        rows_per_bin: int | None = None,
        marginals: bool = True,
    ) -> Bins:
        """Sum, count and maximum of the cells between any edges, in one pass.

        Args:
            row_edges: increasing positions of queries; they need not start at 0 nor end with the matrix.
            column_edges: increasing positions of keys, likewise.
            rows_per_bin: read at most this number of evenly spaced rows of each bin; all by default.
            marginals: also compute `entropy` and `received`; without, both are empty.

        Raises:
            ValueError: fewer than two edges, edges that do not increase or are out of range, or `rows_per_bin` < 1.

        >>> matrix = AttentionMatrix(torch.zeros(4, 1), torch.zeros(4, 1))
        >>> matrix.bins([0, 2, 4], [0, 1, 4]).sums
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
        """
        found = find_bins(self._source, row_edges, column_edges, rows_per_bin, self._schedule, marginals=marginals)
        return Bins(*(self._reshape(part) for part in found))

    @no_grad_no_autocast
    def sample(self, rows: int, columns: int, *, rows_per_bin: int = 4) -> Sample:
        """Estimate `pool(rows, columns)` from some rows of each bin, with its standard error.

        Args:
            rows: The number of row bins.
            columns: The number of column bins.
            rows_per_bin: How many rows of each bin are read.

        Returns:
            The estimate and its standard error, each (..., rows, columns).
        """
        found = sample(self._source, *self._edges(rows, columns), rows_per_bin, self._schedule)
        return Sample(*(self._reshape(part) for part in found))

    @no_grad_no_autocast
    def summary(
        self,
        rows: int | Sequence[int] | None = None,
        columns: int | Sequence[int] | None = None,
        *,
        pairings: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> Summary:
        """All statistics of all rows and columns and `pool(rows, columns)`, in one pass.

        Args:
            rows: the number of bins, or their edges; by default 64 bins, or one per query if there are fewer.
            columns: the number of bins, or their edges; by default 64 bins, or one per key if there are fewer.
            pairings: pairs of integer ids for queries and keys, (queries,) and (keys,) or with the batch in front.
                `Summary.matched_weight` is the weight of each row on keys with the id of its query. With token ids,
                that is the weight on the same token.

        >>> matrix = AttentionMatrix(torch.zeros(4, 1), torch.zeros(4, 1))
        >>> ids = torch.tensor([5, 6, 5, 5])
        >>> found = matrix.summary(2, 2, pairings=[(ids, ids)])
        >>> found.matched_weight
        tensor([[0.7500, 0.2500, 0.7500, 0.7500]])
        """
        queries, keys = self.shape[-2:]
        rows = min(SUMMARY_BINS, queries) if rows is None else rows
        columns = min(SUMMARY_BINS, keys) if columns is None else columns
        row_edges = pooling.even_edges(queries, rows) if isinstance(rows, int) else rows
        column_edges = pooling.even_edges(keys, columns) if isinstance(columns, int) else columns
        found = summarize(self._source, row_edges, column_edges, self._schedule, pairings)
        return Summary(*(self._reshape(part) for part in found))

    @no_grad_no_autocast
    def value_weighted(self, output_projection: Tensor | None = None) -> ValueWeighted:
        """Weights times the norm of each key's value vector (Kobayashi et al., 2020), as a view.

        Args:
            output_projection: the output projection of each head, (heads, value dim, model dim). With it, the norms are
                those of the projected values.

        Raises:
            ShapeError: the matrix has no values, or the projection does not fit.
        """
        if self._value is None:
            raise ShapeError("value_weighted: expected a matrix with values; pass value= to AttentionMatrix")
        return ValueWeighted(self, value_norms(self._value, output_projection, self._source.sizes.heads))

    def merge_tokens(
        self, spans: Sequence[tuple[int, int]], key_spans: Sequence[tuple[int, int]] | None = None
    ) -> MergedTokens:
        """Merge tokens into words, as a view: the mean over the queries of a word, the sum over its keys.

        Args:
            spans: (start, stop) of each word, from the first token to the last without gaps.
            key_spans: the words of the keys, if they are another sequence.

        Raises:
            ShapeError: the spans leave tokens out or overlap.
        """
        return MergedTokens(self, spans, spans if key_spans is None else key_spans)

    @property
    def _batch_and_heads(self) -> tuple[int, int]:
        return self._source.sizes.batch, self._source.sizes.heads

    def _edges(self, rows: int, columns: int) -> tuple[list[int], list[int]]:
        queries, keys = self.shape[-2:]
        return pooling.even_edges(queries, rows), pooling.even_edges(keys, columns)

    def _pool(self, rows: int, columns: int, reduction: str) -> Tensor:
        return pooling.pool(self._source, *self._edges(rows, columns), reduction, self._schedule)

    def _block(self, rows: Positions, columns: Positions) -> Tensor:
        if len(columns) < self.shape[-1]:  # whole rows compute their own lse
            self._ensure_lse_for(len(rows))
        return self._source.block(rows, columns)

    def _ensure_lse_for(self, rows: int) -> None:
        """Compute and cache lse for all rows if at least a quarter of them is requested."""
        if 4 * rows > self.shape[-2]:
            statistics.ensure_lse(self._source, self._schedule)

    def _matmul(self, values: Tensor) -> Tensor:
        return statistics.matmul(self._source, self._without_head_copies(values), self._schedule)

    def _transposed_matmul(self, values: Tensor) -> Tensor:
        return statistics.transposed_matmul(self._source, values, self._schedule)

    def _without_head_copies(self, values: Tensor) -> Tensor:
        """Values without the copies per head, if all heads have the same."""
        if isinstance(self._source, DenseWeights) or values.stride(1) or values.shape[1] == 1:
            return values
        return values[:, : self._source.spec.num_kv_heads]


def _axes_of(tensor: Tensor) -> tuple[str, ...]:
    """The names of the axes before the last two."""
    if tensor.dim() > 4:
        raise ShapeError(f"AttentionMatrix: expected at most the leading axes (batch, head), got {tuple(tensor.shape)}")
    return ("batch", "head")[4 - tensor.dim() :]
