"""Attention of some query rows over some of their keys, to be merged with the results over the other keys.

In: the spec of a whole attention, and which ranges of its rows and columns are here. Out: output and lse over those
columns, which `fused.merge_partials` merges with those of other columns; and gradients, given output and lse of whole
rows. The backend is the one that `attend` would choose: fused on the CPU, streaming on other devices.
Does not know: where the other columns are. Memory: O(rows + columns) that are here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.attention import fused, streaming
from attnscope.attention.algebra import Mask, RegionMask, Sizes
from attnscope.attention.plan import Plan, make_plan
from attnscope.attention.regions import Region, crop_columns, crop_rows, shift
from attnscope.attention.spec import AttentionSpec

Ranges = tuple[tuple[int, int], ...]
"""Positions [start, stop) of a sequence, concatenated in a tensor."""


def total_length(ranges: Ranges) -> int:
    """Return the number of positions.

    >>> total_length(((0, 3), (10, 12)))
    5
    """
    return sum(stop - start for start, stop in ranges)


def plan_partial(
    spec: AttentionSpec, region_mask: RegionMask, rows: Ranges, columns: Ranges, backend: str = "auto"
) -> Plan | None:
    """Return the plan for these rows and columns of a whole attention; None if the mask allows none of their cells.

    Args:
        spec: The whole attention, without score modifiers, sinks and dropout, which depend on whole rows.
        region_mask: The mask of `spec` as regions.
        rows: The query positions that are here.
        columns: The key positions that are here.
        backend: The backend, as in `attend`.
    """
    assert not spec.steps and spec.sinks is None and not spec.dropout
    signature, queries, keys = spec.signature, total_length(rows), total_length(columns)
    partial = replace(
        spec,
        signature=signature._replace(
            query=with_length(signature.query, queries),
            key=with_length(signature.key, keys),
            value=with_length(signature.value, keys),
        ),
        sizes=spec.sizes._replace(queries=queries, keys=keys),
        mask=_PartialMask(spec.mask, spec.sizes, region_mask, rows, columns),
    )
    plan = make_plan(partial, backend)
    return plan if plan.cells else None


def forward(plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and lse over the columns that are here; 0 and -inf for a row that attends to none of them."""
    if plan.fused_plan is not None:
        fused_plan, query, key, padded_value = fused.fit_to_kernel(plan.fused_plan, query, key, value)
        output, lse = fused.forward(fused_plan, query, key, padded_value)
        return output[..., : value.shape[-1]], lse
    return _streaming_attention(plan, query.to(plan.spec.compute_dtype), key, value).forward()


def backward(
    plan: Plan,
    gradients: tuple[Tensor | None, Tensor | None],
    tensors: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the columns that are here add to the gradients of query, key and value, in at least fp32.

    Args:
        plan: The plan of these rows and columns.
        gradients: The gradients of output and lse, of whole rows.
        tensors: Query, key and value.
        output: The output of whole rows, over all columns.
        lse: The lse of whole rows, over all columns.
    """
    dtype = plan.spec.compute_dtype
    query, key, value = (tensor.to(dtype) for tensor in tensors)
    grad_output, grad_lse = gradients
    grad_output, output = None if grad_output is None else grad_output.to(dtype), output.to(dtype)
    if plan.fused_plan is None:
        attention = _streaming_attention(plan, query, key, value)
        grads = attention.backward(grad_output, grad_lse, output, lse, needs_grad=(True, True, True))
        grad_query, grad_key, grad_value = grads
        assert grad_query is not None and grad_key is not None and grad_value is not None
        return grad_query, grad_key, grad_value
    dim, value_dim = query.shape[-1], value.shape[-1]
    fused_plan, query, key, value = fused.fit_to_kernel(plan.fused_plan, query, key, value)
    saved = fused.SavedTensors(query, key, value, fused.pad_head_dim(output, value.shape[-1]), lse)
    grad_output = None if grad_output is None else fused.pad_head_dim(grad_output, value.shape[-1])
    grad_query, grad_key, grad_value = fused.backward(fused_plan, saved, grad_output, grad_lse)
    if fused_plan.scale != plan.fused_plan.scale:  # the kernel was given scale * query
        grad_query = grad_query * plan.fused_plan.scale
    return grad_query[..., :dim], grad_key[..., :dim], grad_value[..., :value_dim]


def _streaming_attention(plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> streaming.StreamingAttention:
    assert plan.streaming_plan is not None, "the reference does not support partial attention"
    return streaming.StreamingAttention(plan.spec, plan.streaming_plan, 0, (query, key, value))


@dataclass(frozen=True, eq=False, repr=False)
class _PartialMask(Mask):
    """Some rows and columns of a mask, counted from 0 in the order in which they are here."""

    mask: Mask
    sizes: Sizes  # of the whole mask
    region_mask: RegionMask  # the whole mask, converted once for many parts
    rows: Ranges
    columns: Ranges

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return self.mask.allows(_positions(query, self.rows), _positions(key, self.columns), self.sizes)

    def to_regions(self, sizes: Sizes) -> RegionMask:
        key_mask = self.region_mask.key_mask
        if key_mask is not None:
            key_mask = torch.cat([key_mask[:, :0], *(key_mask[:, start:stop] for start, stop in self.columns)], dim=1)
        return RegionMask(tuple(self._crop(regions) for regions in self.region_mask.regions), key_mask)

    def _crop(self, regions: tuple[Region, ...]) -> tuple[Region, ...]:
        cropped: list[Region] = []
        down = 0
        for top, bottom in self.rows:
            strip, right = crop_rows(regions, top, bottom), 0
            for left, stop in self.columns:
                cropped += shift(crop_columns(strip, left, stop), down, right)
                right += stop - left
            down += bottom - top
        return tuple(cropped)

    def __repr__(self) -> str:
        return f"{self.mask} of rows {self.rows} and columns {self.columns}"


def _positions(index: Tensor, ranges: Ranges) -> Tensor:
    """Return the positions in the whole sequence of indices into the concatenated ranges."""
    positions, before = index, 0
    for start, stop in ranges:
        positions = torch.where(index >= before, index + (start - before), positions)
        before += stop - start
    return positions


def with_length(shape: torch.Size, length: int) -> torch.Size:
    """Return the shape (..., positions, dim) with another number of positions."""
    return torch.Size((*shape[:-2], length, shape[-1]))
