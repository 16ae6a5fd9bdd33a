"""Attention statistics by the Triton kernels: what to pass to each, and what comes back.

In: query and key as stored, intervals of keys, and scores. Out: fp32 on the device of the query. Memory: the results
and O(n) integers. No kernel uses atomics, so results are the same bits every time. Nothing is read from the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.intervals import BlockRows, block_rows, row_bounds
from attnscope.attention.triton.columns import column_kernel, product_kernel
from attnscope.attention.triton.configs import ARCHITECTURES, Config, find_architecture, find_config
from attnscope.attention.triton.inputs import KernelInputs, NeighbourWeights, RowStatistics
from attnscope.attention.triton.language import triton
from attnscope.attention.triton.layout import ColumnLayout, make_column_layout, max_parts, sum_parts
from attnscope.attention.triton.matches import match_count_kernel, match_kernel
from attnscope.attention.triton.neighbours import largest_key_kernel, neighbour_kernel
from attnscope.attention.triton.rows import LANES, row_kernel
from attnscope.attention.triton.spread import spread_kernel

LOG2_E = math.log2(math.e)
MAX_VALUES = 64  # columns of A^T @ values that one program computes
LARGEST_KEY_ROWS, LARGEST_KEY_WARPS = 32, 4


def row_statistics(inputs: KernelInputs, chosen: Tensor | None = None, *, find_key: bool = True) -> RowStatistics:
    """Return the statistics of all rows in one pass over query and key.

    Args:
        inputs: The attention.
        chosen: Booleans (batch or 1, keys): the keys whose mass is asked for.
        find_key: Whether to return the candidates for `largest_keys`.
    """
    return RowStatistics.from_planes(*row_planes(inputs, chosen, find_key=find_key))


def row_planes(inputs: KernelInputs, chosen: Tensor | None, *, find_key: bool) -> tuple[Tensor, Tensor]:
    """Return the statistics of all rows as (9 or 10, batch, heads, queries), and the candidates, empty if not asked."""
    call = _Call(inputs, "rows")
    planes = 9 if chosen is None else 10
    out = call.empty(planes, call.queries)
    shape = call.lines(call.queries) if find_key else (0,)
    candidates = torch.empty(shape, dtype=torch.int32, device=out.device)
    flags = out if chosen is None else chosen.to(torch.uint8).contiguous()
    stride_flags = 0 if chosen is None or len(chosen) == 1 else flags.stride(0)
    _run(
        row_kernel, (_ceil_div(call.queries, call.config.block_rows), call.num_lines),
        *call.tensors, *call.mask, call.slopes, call.sinks, flags, out, candidates if find_key else out, *call.strides,
        call.mask_stride, stride_flags, *call.sizes, call.keys, call.head_dim, call.offset, call.slope_offset,
        *call.scale, **call.tile, **call.constants, HAS_SINKS=inputs.terms.sinks is not None,
        CHOSEN=chosen is not None, FIND_KEY=find_key, POSITIVE_SCALE=inputs.terms.scale > 0,
        ONLY_BEFORE=inputs.intervals.backward_only, PRECISION=call.precision, **call.options,
    )  # fmt: skip
    return out, candidates


def largest_keys(inputs: KernelInputs, candidates: Tensor) -> Tensor:
    """Return the key with the largest logit of each row, int32 (batch, heads, queries); -1 for rows without keys."""
    call = _Call(inputs, "rows")
    found = torch.empty_like(candidates)
    _run(
        largest_key_kernel, (_ceil_div(call.queries, LARGEST_KEY_ROWS), call.num_lines),
        *call.tensors, *call.mask, call.slopes, candidates, found, *call.strides, call.mask_stride,
        *call.sizes, call.head_dim, call.slope_offset, *call.scale, M=LARGEST_KEY_ROWS,
        NUM_CANDIDATES=call.config.block_keys // LANES.value, **call.constants, num_warps=LARGEST_KEY_WARPS,
    )  # fmt: skip
    return found


def neighbour_weights(inputs: KernelInputs, lse_base2: Tensor, reach: int) -> NeighbourWeights:
    """Return the weights on keys near the query, at most `reach` >= 1 tokens away, and on the first key."""
    return NeighbourWeights(*neighbour_planes(inputs, lse_base2, reach).unbind(0))


def neighbour_planes(inputs: KernelInputs, lse_base2: Tensor, reach: int) -> Tensor:
    """Return the fields of `NeighbourWeights` as one tensor."""
    call = _Call(inputs, "rows")
    out = call.empty(4, call.queries)
    _run(
        neighbour_kernel, (_ceil_div(call.queries, call.config.block_rows), call.num_lines),
        *call.tensors, lse_base2.contiguous(), *call.mask, call.slopes, out, *call.strides, call.mask_stride,
        *call.sizes, call.keys, call.head_dim, call.offset, call.slope_offset, *call.scale, reach,
        **call.tile, **call.constants, PRECISION=call.precision, **call.options,
    )  # fmt: skip
    return out


def distance_spread(inputs: KernelInputs, lse_base2: Tensor, mean: Tensor) -> Tensor:
    """Return the standard deviation of the distance of each row, given its mean, (batch, heads, queries)."""
    call = _Call(inputs, "rows")
    out = torch.empty(call.lines(call.queries), dtype=torch.float32, device=call.device)
    _run(
        spread_kernel, (_ceil_div(call.queries, call.config.block_rows), call.num_lines),
        *call.tensors, lse_base2.contiguous(), mean.contiguous(), *call.mask, call.slopes, out, *call.strides,
        call.mask_stride, *call.sizes, call.keys, call.head_dim, call.offset, call.slope_offset, *call.scale,
        **call.tile, **call.constants, PRECISION=call.precision, **call.options,
    )  # fmt: skip
    return out


def matched_weights(inputs: KernelInputs, lse_base2: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Return the weight of each row on keys with the id of its query, (batch, heads, pairings, queries).

    Args:
        inputs: The attention.
        lse_base2: From `row_statistics`.
        query_ids: int64 (pairings, batch, queries).
        key_ids: int64 (pairings, batch, keys).
    """
    inputs = _with_config(inputs, "rows")
    assert inputs.config is not None
    call = _Call(inputs._replace(config=match_config(inputs.config)), "rows")
    pairings, batch, _ = query_ids.shape
    out = torch.empty(*call.lead, pairings, call.queries, dtype=torch.float32, device=call.device)
    _run(
        match_kernel, (_ceil_div(call.queries, call.config.block_rows), call.num_lines),
        *call.tensors, lse_base2.contiguous(), *call.mask, call.slopes, query_ids, key_ids, out, *call.strides,
        call.mask_stride, *call.sizes, call.keys, batch, call.head_dim, call.slope_offset, *call.scale, **call.tile,
        P=_power_of_2(pairings), PAIRINGS=pairings, **call.constants, PRECISION=call.precision, **call.options,
    )  # fmt: skip
    return out


def match_config(config: Config) -> Config:
    """Return the tiles for `matched_weights`, given those of the row pass: comparing ids takes many registers."""
    return config._replace(block_rows=max(config.block_rows // 2, 16))


def count_matches(inputs: KernelInputs, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Return how many keys with the id of its query each row attends to, int64 (batch, pairings, queries)."""
    call = _Call(inputs, "rows")
    pairings, batch, queries = query_ids.shape
    out = torch.empty(batch, pairings, queries, dtype=torch.int64, device=call.device)
    _run(
        match_count_kernel, (_ceil_div(queries, call.config.block_rows), batch, pairings),
        *call.mask, query_ids, key_ids, out, call.mask_stride, queries, call.keys, batch, **call.tile,
        PAIRINGS=pairings, num_warps=call.config.num_warps,
    )  # fmt: skip
    return out


def received(inputs: KernelInputs, lse_base2: Tensor) -> Tensor:
    """Return the sum of each column, (batch, heads, keys)."""
    queries, keys = inputs.query.shape[2], inputs.key.shape[2]
    inputs = _with_config(inputs, "columns")
    layout = _layout(inputs, [0, queries], [0, keys], group=1)
    return column_sums(inputs, lse_base2, layout, maximum=False)[0].squeeze(-2)


def bins(
    inputs: KernelInputs, lse_base2: Tensor, row_edges: Sequence[int], column_edges: Sequence[int], *, maximum: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the sum and, if asked, the maximum of each bin, (batch, heads, row bins, column bins).

    Bins are given by their edges; equal edges make an empty bin, which has 0.
    """
    inputs = _with_config(inputs, "bins")
    layout = _layout(inputs, row_edges, column_edges)
    sums, largest = column_sums(inputs, lse_base2, layout, maximum=maximum)
    return sum_parts(sums, layout.counts), max_parts(largest, layout.counts) if maximum else None


def column_sums(
    inputs: KernelInputs, lse_base2: Tensor, layout: ColumnLayout, *, maximum: bool
) -> tuple[Tensor, Tensor]:
    """Return sums and, if asked, maxima of columns or blocks over bins of rows, (batch, heads, row bins, width)."""
    call = _Call(inputs, "columns")
    num_bins, (batch, heads) = len(layout.edges) - 1, call.lead
    sums = torch.empty(batch, heads, num_bins, layout.width, dtype=torch.float32, device=call.device)
    largest = torch.empty_like(sums) if maximum else sums.new_empty(0)
    _run(
        column_kernel, (len(layout.left), num_bins, call.num_lines),
        *call.tensors, lse_base2.contiguous(), *call.mask, call.slopes, layout.left, layout.right, *layout.rows,
        layout.edges, sums, largest if maximum else sums, *call.strides, call.mask_stride, _batch_stride(layout.rows),
        layout.width, *call.sizes, call.head_dim, call.slope_offset, layout.first_column, *call.scale, **call.tile,
        **call.constants, GROUP=layout.group, MAXIMUM=maximum, PRECISION=call.precision, **call.options,
    )  # fmt: skip
    return sums, largest


def _with_config(inputs: KernelInputs, kernel: str) -> KernelInputs:
    """The inputs with the configuration of a kernel on their device, unless they have one."""
    call = _Call(inputs, kernel)
    return inputs._replace(config=call.config, precision=call.precision)


def _layout(
    inputs: KernelInputs, row_edges: Sequence[int], column_edges: Sequence[int], *, group: int | None = None
) -> ColumnLayout:
    """The layout for these bins, from intervals on the device."""
    assert inputs.config is not None
    bounds = row_bounds(inputs.intervals.to(torch.device("cpu")))
    layout = make_column_layout(bounds, row_edges, column_edges, inputs.config.block_keys, group=group)
    return layout.to(inputs.query.device)


def transposed_matmul(inputs: KernelInputs, lse_base2: Tensor, values: Tensor) -> Tensor:
    """Return weights^T @ values in fp32, with values (batch, heads, queries, columns)."""
    call = _Call(inputs, "products")
    values = values.to(torch.float32)
    values = values if values.stride(-1) == 1 else values.contiguous()
    width = values.shape[-1]
    columns = min(max(_power_of_2(width), 16), MAX_VALUES)
    left, right = call.key_blocks()
    bounds = block_rows(row_bounds(inputs.intervals), left, right)
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
        query, key, intervals, terms, config, _ = inputs
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
        self.config, self.precision = (config, inputs.precision) if config is not None else self._find_config(kernel)
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


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _power_of_2(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _batch_stride(bounds: BlockRows) -> int:
    return bounds.first.stride(0) if len(bounds.first) > 1 else 0
