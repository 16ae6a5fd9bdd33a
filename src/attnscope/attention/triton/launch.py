"""Attention statistics by the Triton kernels: what to pass to each, and what comes back.

In: query and key as stored, intervals of keys, and scores. Out: fp32 on the device of the query. Memory: the results
and O(n) integers. No kernel uses atomics, so results are the same bits every time. Nothing is read from the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.attention.intervals import BlockRows, Intervals, block_rows
from attnscope.attention.triton.columns import column_kernel, product_kernel
from attnscope.attention.triton.configs import ARCHITECTURES, Config, find_architecture, find_config
from attnscope.attention.triton.language import triton
from attnscope.attention.triton.neighbours import largest_key_kernel, neighbour_kernel
from attnscope.attention.triton.rows import LANES, row_kernel
from attnscope.attention.triton.score_terms import ScoreTerms

LOG2_E = math.log2(math.e)
MAX_VALUES = 64  # columns of A^T @ values that one program computes
LARGEST_KEY_ROWS, LARGEST_KEY_WARPS = 32, 4


class KernelInputs(NamedTuple):
    """The attention of query (batch, heads, queries, dim) and key (batch, key heads, keys, dim)."""

    query: Tensor
    key: Tensor
    intervals: Intervals
    terms: ScoreTerms
    config: Config | None = None  #: instead of that of the device; fp32 is multiplied without splitting then


class RowStatistics(NamedTuple):
    """Statistics of each query, fp32 of shape (batch, heads, queries); 0 for rows without keys unless noted."""

    lse: Tensor  #: log-sum-exp with sinks, -inf for rows without keys
    lse_base2: Tensor  #: the same times log2(e), for the column pass
    entropy: Tensor  #: -sum of w log w, in nats
    largest_weight: Tensor
    largest_logit: Tensor  #: the score of the largest weight, -inf for rows without keys
    squares: Tensor  #: sum of squared weights
    distance: Tensor  #: mean of query position - key position, with the queries as the last of the keys
    abs_distance: Tensor  #: mean absolute distance
    mass: Tensor  #: sum of weights, 1 unless a sink takes a part
    chosen_mass: Tensor | None  #: weight on the chosen keys
    candidates: Tensor  #: for `largest_keys`


class NeighbourWeights(NamedTuple):
    """Weights on keys at fixed places, fp32 of shape (batch, heads, queries)."""

    local_weight: Tensor  #: on positions at most `reach` away
    self_weight: Tensor  #: on the position of the query
    previous_weight: Tensor  #: on the position before it
    first_weight: Tensor  #: on key 0


def row_statistics(inputs: KernelInputs, chosen: Tensor | None = None) -> RowStatistics:
    """Return the statistics of all rows in one pass over query and key.

    Args:
        inputs: The attention.
        chosen: Booleans (batch or 1, keys): the keys whose mass is asked for.
    """
    call = _Call(inputs, "rows")
    planes = 9 if chosen is None else 10
    out = call.empty(planes, call.queries)
    candidates = torch.empty(call.lines(call.queries), dtype=torch.int32, device=out.device)
    flags = (
        torch.zeros(1, 1, dtype=torch.uint8, device=out.device)
        if chosen is None
        else chosen.to(torch.uint8).contiguous()
    )
    _run(
        row_kernel, (_ceil_div(call.queries, call.config.block_rows), call.num_lines),
        *call.tensors, *call.mask, call.slopes, call.sinks, flags, out, candidates, *call.strides, call.mask_stride,
        flags.stride(0) if len(flags) > 1 else 0, *call.sizes, call.keys, call.head_dim, call.offset,
        call.slope_offset, *call.scale, **call.tile, **call.constants, HAS_SINKS=inputs.terms.sinks is not None,
        CHOSEN=chosen is not None, POSITIVE_SCALE=inputs.terms.scale > 0, ONLY_BEFORE=inputs.intervals.backward_only,
        PRECISION=call.precision, **call.options,
    )  # fmt: skip
    found = out.unbind(0)
    return RowStatistics._make((*found[:9], None if chosen is None else found[9], candidates))


def largest_keys(inputs: KernelInputs, statistics: RowStatistics) -> Tensor:
    """Return the key with the largest logit of each row, int32 (batch, heads, queries); -1 for rows without keys."""
    call = _Call(inputs, "rows")
    found = torch.empty_like(statistics.candidates)
    _run(
        largest_key_kernel, (_ceil_div(call.queries, LARGEST_KEY_ROWS), call.num_lines),
        *call.tensors, *call.mask, call.slopes, statistics.candidates, found, *call.strides, call.mask_stride,
        *call.sizes, call.head_dim, call.slope_offset, *call.scale, M=LARGEST_KEY_ROWS,
        NUM_CANDIDATES=call.config.block_keys // LANES.value, **call.constants, num_warps=LARGEST_KEY_WARPS,
    )  # fmt: skip
    return found


def neighbour_weights(inputs: KernelInputs, lse_base2: Tensor, reach: int) -> NeighbourWeights:
    """Return the weights on keys near the query, at most `reach` >= 1 tokens away, and on the first key."""
    call = _Call(inputs, "rows")
    out = call.empty(4, call.queries)
    _run(
        neighbour_kernel, (_ceil_div(call.queries, call.config.block_rows), call.num_lines),
        *call.tensors, lse_base2.contiguous(), *call.mask, call.slopes, out, *call.strides, call.mask_stride,
        *call.sizes, call.keys, call.head_dim, call.offset, call.slope_offset, *call.scale, reach,
        **call.tile, **call.constants, PRECISION=call.precision, **call.options,
    )  # fmt: skip
    return NeighbourWeights(*out.unbind(0))


def received(inputs: KernelInputs, lse_base2: Tensor) -> Tensor:
    """Return the sum of each column, (batch, heads, keys)."""
    call = _Call(inputs, "columns")
    left, right = call.key_blocks()
    edges = _to_device((0, call.queries), call.device)
    sums, _ = call.column_pass(lse_base2, left, right, edges, call.keys, each_column=True)
    return sums.squeeze(-2)


def bins(
    inputs: KernelInputs, lse_base2: Tensor, row_edges: Sequence[int], column_edges: Sequence[int], *, maximum: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the sum and, if asked, the maximum of each bin, (batch, heads, row bins, column bins).

    Bins are given by their edges; equal edges make an empty bin, which has 0.
    """
    call = _Call(inputs, "bins")
    widths = [right - left for left, right in pairwise(column_edges)]
    each_column = 2 * max(widths) <= call.config.block_keys
    step = call.config.block_keys
    if each_column:  # many narrow bins share a block
        counts = widths
        left = torch.arange(column_edges[0], column_edges[-1], step, dtype=torch.int32, device=call.device)
        right = (left + step).clamp(max=column_edges[-1])
    else:
        counts = [-(-width // step) for width in widths]
        blocks = [
            (at, min(at + step, stop)) for start, stop in pairwise(column_edges) for at in range(start, stop, step)
        ]
        left, right = torch.tensor(blocks, dtype=torch.int32, device=call.device).reshape(-1, 2).T.contiguous()
    edges = _to_device(row_edges, call.device)
    first = column_edges[0]
    found = call.column_pass(
        lse_base2, left, right, edges, sum(counts), each_column=each_column, maximum=maximum, first_column=first
    )
    sums, largest = found
    return _segments(sums, counts).sum(-1), None if largest is None else _segments(largest, counts).amax(-1)


def transposed_matmul(inputs: KernelInputs, lse_base2: Tensor, values: Tensor) -> Tensor:
    """Return weights^T @ values in fp32, with values (batch, heads, queries, columns)."""
    call = _Call(inputs, "products")
    values = values.to(torch.float32)
    values = values if values.stride(-1) == 1 else values.contiguous()
    width = values.shape[-1]
    columns = min(max(_power_of_2(width), 16), MAX_VALUES)
    left, right = call.key_blocks()
    bounds = block_rows(inputs.intervals, left, right)
    out = torch.empty(*call.lines(call.keys), width, dtype=torch.float32, device=call.device)
    _run(
        product_kernel, (len(left), _ceil_div(width, columns), call.num_lines),
        *call.tensors, lse_base2.contiguous(), *call.mask, call.slopes, left, right, *bounds, values, out,
        *call.strides,
        *values.stride()[:3], call.mask_stride, _batch_stride(bounds), *call.sizes, call.keys, width, call.head_dim,
        call.slope_offset, *call.scale, **call.tile, C=columns, **call.constants, PRECISION=call.precision,
        **call.options,
    )  # fmt: skip
    return out


class _Call:
    """What all kernels are passed."""

    def __init__(self, inputs: KernelInputs, kernel: str) -> None:
        query, key, intervals, terms, config = inputs
        query, key = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key))
        batch, heads, self.queries, self.head_dim = query.shape
        self.keys = key.shape[2]
        self.inputs, self.device, self.lead = inputs, query.device, (batch, heads)
        self.num_lines = batch * heads
        self.tensors, self.mask = (query, key), (intervals.start, intervals.stop)
        self.strides = (*query.stride()[:3], *key.stride()[:3])
        self.mask_stride = intervals.start.stride(0) if len(intervals.start) > 1 else 0
        self.sizes = heads, heads // key.shape[1], self.queries
        self.offset, self.slope_offset = self.keys - self.queries, terms.slope_offset
        # A kernel takes a pointer also where it reads nothing.
        self.slopes, self.sinks = (
            query if each is None else each.to(query.device).contiguous() for each in (terms.slopes, terms.sinks)
        )
        capped = terms.cap is not None
        self.scale = (terms.scale * LOG2_E, 0.0) if terms.cap is None else (terms.scale, terms.cap * LOG2_E)
        self.config, self.precision = (config, "ieee") if config is not None else self._find_config(kernel)
        width = max(_power_of_2(self.head_dim), 16)
        self.tile = {"M": self.config.block_rows, "N": self.config.block_keys}
        self.constants = {
            "D": width,
            "EVEN_D": width == self.head_dim,
            "SOFTCAP": capped,
            "ALIBI": terms.slopes is not None,
        }
        self.options = {"num_warps": self.config.num_warps, "num_stages": self.config.num_stages}

    def _find_config(self, kernel: str) -> tuple[Config, str]:
        """Tile sizes for the current device, and how it multiplies fp32."""
        with torch.cuda.device_of(self.tensors[0]):
            architecture = current_architecture()
        itemsize = self.tensors[0].element_size()
        return find_config(kernel, architecture, self.head_dim, itemsize), ARCHITECTURES[architecture].precision

    def lines(self, length: int) -> tuple[int, int, int]:
        """The shape of a number for each row or column."""
        return (*self.lead, length)

    def empty(self, planes: int, length: int) -> Tensor:
        """Uninitialized results, (planes, batch, heads, length)."""
        return torch.empty(planes, *self.lines(length), dtype=torch.float32, device=self.device)

    def key_blocks(self) -> tuple[Tensor, Tensor]:
        """First and last key (exclusive) of each block of keys."""
        left = torch.arange(0, self.keys, self.config.block_keys, dtype=torch.int32, device=self.device)
        return left, (left + self.config.block_keys).clamp(max=self.keys)

    def column_pass(
        self, lse: Tensor, left: Tensor, right: Tensor, edges: Tensor, width: int,
        *, each_column: bool, maximum: bool = False, first_column: int = 0,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Sums and maxima of columns or blocks over bins of rows, (batch, heads, row bins, width)."""
        num_bins = len(edges) - 1
        sums = torch.empty(*self.lead, num_bins, width, dtype=torch.float32, device=self.device)
        largest = torch.empty_like(sums) if maximum else sums
        bounds = block_rows(self.inputs.intervals, left, right)
        _run(
            column_kernel, (len(left), num_bins, self.num_lines),
            *self.tensors, lse.contiguous(), *self.mask, self.slopes, left, right, *bounds, edges, sums, largest,
            *self.strides,
            self.mask_stride, _batch_stride(bounds), width, *self.sizes, self.head_dim, self.slope_offset,
            first_column, *self.scale, **self.tile, **self.constants, EACH_COLUMN=each_column, MAXIMUM=maximum,
            PRECISION=self.precision, **self.options,
        )  # fmt: skip
        return sums, largest if maximum else None


def current_architecture() -> str:
    """Return the entry of ARCHITECTURES for the current device; raise UnsupportedError if there is none."""
    driver: Any = triton.runtime.driver.active
    target = driver.get_current_target()
    return find_architecture(target.backend, target.arch)


def _run(kernel: Any, grid: tuple[int, ...], query: Tensor, *arguments: object, **options: object) -> None:
    """Launch a kernel on the device of the query; an empty grid has nothing to do."""
    if all(grid):
        with torch.cuda.device_of(query):
            kernel[grid](query, *arguments, **options)


def _to_device(edges: Sequence[int], device: torch.device) -> Tensor:
    """Return edges as int32; evenly spaced ones are made on the device, as a copy would wait for its queue."""
    start, step = edges[0], edges[1] - edges[0]
    if all(b - a == step for a, b in pairwise(edges)):
        return torch.arange(len(edges), dtype=torch.int32, device=device) * step + start
    return torch.tensor(list(edges), dtype=torch.int32, device=device)


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _power_of_2(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _batch_stride(bounds: BlockRows) -> int:
    return bounds.first.stride(0) if len(bounds.first) > 1 else 0


def _segments(parts: Tensor, counts: Sequence[int]) -> Tensor:
    """Reshape (..., sum of counts) to (..., bins, largest count), with 0 where a bin has fewer parts."""
    widest = max(counts)
    if not widest:
        return parts.new_zeros(*parts.shape[:-1], len(counts), 1)
    if min(counts) == widest:
        return parts.unflatten(-1, (len(counts), widest))
    count = torch.tensor(counts, device=parts.device)
    ramp = torch.arange(widest, device=parts.device)
    index = (count.cumsum(0) - count)[:, None] + ramp
    inside = ramp < count[:, None]
    return torch.where(inside, parts[..., index.clamp(max=parts.shape[-1] - 1)], 0.0)
