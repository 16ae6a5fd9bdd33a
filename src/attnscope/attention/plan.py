"""Choose a backend for an attention call, and say why.

In: an `AttentionSpec`. Out: a `Plan` that `attend` executes and `explain` prints. The fused kernel is used wherever its
result is exact, streaming everywhere else, and the quadratic reference only if the caller requests it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention import fused, operators, reference, streaming
from attnscope.attention.algebra import RegionMask
from attnscope.attention.block_sizes import block_sizes
from attnscope.attention.blocks import iter_blocks
from attnscope.attention.kernel_blocks import BlockKind, split_regions
from attnscope.attention.regions import Region, area, band
from attnscope.attention.spec import AttentionSpec
from attnscope.attention.triton.support import plan_kernels
from attnscope.errors import UnsupportedError
from attnscope.formatting import format_bytes, format_count

BACKENDS = ("auto", "fused", "streaming", "reference")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How `attend` computes one call: the chosen backend, its work and memory, and the reason. Print it."""

    why: str
    """Why this backend was chosen."""
    spec: AttentionSpec
    """The call, without the values of its tensors."""
    fused_plan: fused.FusedPlan | None = None
    """The kernel calls, if the backend is fused."""
    streaming_plan: streaming.StreamingPlan | None = None
    """The blocks, if the backend is streaming."""

    def execute(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and lse of 4-D tensors; autocast does not change how they are computed."""
        device = self.spec.signature.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.execute(query, key, value)
        if device == "meta":  # shapes only, which dense weights have without memory
            return reference.reference_attention(self.spec, query, key, value)[:2]
        if self.fused_plan is not None:
            output, lse = fused.fused_attention(self.fused_plan, query, key, value)
        elif self.streaming_plan is not None:
            output, lse = streaming.streaming_attention(self.spec, self.streaming_plan, query, key, value)
        else:
            return reference.reference_attention(self.spec, query, key, value)[:2]
        return (output, lse) if self.spec.sinks is None else self.spec.sinks.apply(output, lse)

    @property
    def backend(self) -> str:
        """The name of the backend: "fused", "streaming" or "reference"."""
        if self.fused_plan is not None:
            return "fused"
        return "reference" if self.streaming_plan is None else "streaming"

    @property
    def statistics(self) -> str:
        """How an `AttentionMatrix` of this query and key computes its statistics, and why."""
        found = self.spec.mask.to_regions(self.spec.sizes)
        region_mask = None if found is None else found.to(self.spec.signature.device)
        kernels = plan_kernels(self.spec, region_mask)
        if not isinstance(kernels, str):
            return "Triton kernels, because each query attends to one interval of keys"
        other = "fused kernel" if why_not_fused(self.spec, region_mask) is None else "streaming"
        return f"{other}, because {kernels}"

    @property
    def cells(self) -> int:
        """The number of scores that are computed, over all batch rows and heads."""
        batch, heads = self.spec.sizes[:2]
        if self.fused_plan is not None:
            return heads * sum(
                len(range(batch)[group.batch]) * block.cells
                for group in self.fused_plan.groups
                for block in group.blocks
            )
        if self.streaming_plan is not None:
            return heads * sum(
                len(range(batch)[group.batch]) * (rows.bottom - rows.top) * (columns.right - columns.left)
                for group in self.streaming_plan.groups
                for rows in iter_blocks(
                    group.regions, self.streaming_plan.block_rows, self.streaming_plan.block_columns
                )
                for columns in rows.columns
            )
        return self.dense_cells

    @property
    def dense_cells(self) -> int:
        """The number of scores in the dense matrices of all batch rows and heads."""
        batch, heads, queries, keys = self.spec.sizes
        return batch * heads * queries * keys

    @property
    def kernel_calls(self) -> int:
        """The number of calls of the fused kernel; a block with repeats takes one call per batch row."""
        if self.fused_plan is None:
            return 0
        batch = range(self.spec.sizes.batch)
        return sum(
            1 if block.repeats == 1 else len(batch[group.batch])
            for group in self.fused_plan.groups
            for block in group.blocks
        )

    @property
    def extra_bytes(self) -> int:
        """The estimated peak memory of the forward pass, in addition to inputs and output."""
        batch, heads, queries, _ = self.spec.sizes
        item = self.spec.compute_dtype.itemsize
        if self.fused_plan is not None:
            merged = batch * heads * queries * (self.spec.signature.value[-1] + 1) * item
            return merged if self.kernel_calls > 1 else batch * heads * queries * item
        if self.streaming_plan is not None:
            return 3 * batch * heads * self.streaming_plan.block_rows * self.streaming_plan.block_columns * item
        return 3 * self.dense_cells * item

    def __str__(self) -> str:
        sizes, signature = self.spec.sizes, self.spec.signature
        share = 100 * self.cells / max(self.dense_cells, 1)
        lines = {
            "attention": f"{sizes.queries:,} queries x {sizes.keys:,} keys, {sizes.heads} heads on "
            f"{self.spec.num_kv_heads}, batch {sizes.batch}, {str(signature.dtype)[6:]} on {signature.device}",
            "mask": str(self.spec.mask),
            "backend": f"{self.backend}, {self._describe()}",
            "scores": f"{self.cells:,} of {self.dense_cells:,} cells ({share:.3g} %)",
            "memory": f"{format_bytes(self.extra_bytes)} in addition to inputs and output; dense weights would take "
            f"{format_bytes(self.dense_cells * self.spec.compute_dtype.itemsize)}",
            "why": self.why,
        }
        if signature.device.type != "cpu":
            lines["statistics"] = self.statistics
        return "\n".join(f"{name:10} {text}" for name, text in lines.items())

    def _describe(self) -> str:
        """Say what the backend does."""
        if self.fused_plan is not None:
            kinds = sorted({block.kind.value for group in self.fused_plan.groups for block in group.blocks})
            calls = format_count(self.kernel_calls, "kernel call")
            return f"{calls} ({', '.join(kinds) or 'empty mask'})" + " merged by lse" * (self.kernel_calls > 1)
        if self.streaming_plan is not None:
            block = f"{self.streaming_plan.block_rows} x {self.streaming_plan.block_columns}"
            return f"online softmax over blocks of {block} scores per head"
        return "all weights are built"


def make_plan(spec: AttentionSpec, backend: str = "auto") -> Plan:
    """Return the plan for a call; raise UnsupportedError if the requested backend cannot compute it exactly."""
    if backend not in BACKENDS:
        raise ValueError(f"attend: expected backend to be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "reference":
        return Plan(why="requested with backend='reference'", spec=spec)
    found = spec.mask.to_regions(spec.sizes)
    region_mask = None if found is None else found.to(spec.signature.device)
    obstacle = why_not_fused(spec, region_mask)
    if backend == "fused" and obstacle is not None:
        raise UnsupportedError(
            f"attend: backend='fused' does not support this call: {obstacle}; "
            "use backend='streaming' (O(n) memory) or 'auto'"
        )
    if backend == "streaming" or obstacle is not None or region_mask is None:
        chosen = f"{obstacle}; streaming is exact in O(n) memory"
        why = "requested with backend='streaming'" if backend == "streaming" else chosen
        return Plan(why=why, spec=spec, streaming_plan=_make_streaming_plan(spec, region_mask))
    # Repeats of a block are written through an unfolded view; traced, that loses what lies between them.
    merge_repeats = not torch.compiler.is_compiling()
    groups = tuple(
        fused.BatchBlocks(batch, split_regions(regions, merge_repeats=merge_repeats))
        for batch, regions in group_batch_rows(region_mask)
    )
    why = "no score modifiers, and the mask is a short list of rectangles: the fused kernel is exact"
    why += _name_operators(spec, groups, has_bias=region_mask.key_mask is not None)
    bias = None if region_mask.key_mask is None else fused.key_bias(region_mask.key_mask, spec.compute_dtype)
    fused_plan = fused.make_fused_plan(groups, spec.sizes.queries, spec.sizes.keys, spec.scale, bias)
    return Plan(why=why, spec=spec, fused_plan=fused_plan)


def why_not_fused(spec: AttentionSpec, region_mask: RegionMask | None) -> str | None:
    """Return the reason why the fused kernel would not be exact for this call; None if it is."""
    device, dtype = spec.signature.device, spec.signature.dtype
    platform = operators.platform_of(device)
    if platform not in operators.OPERATORS:
        return f"torch has fused kernels with lse on cpu and cuda only, these tensors are on {device}"
    if operators.SCHEMA_MISMATCHES[platform] is not None:
        return operators.SCHEMA_MISMATCHES[platform]
    wrong_dtype = operators.why_not_dtype(operators.OPERATORS[platform][-1], device, dtype)
    if wrong_dtype is not None:
        return wrong_dtype
    if spec.steps:
        return f"the fused kernel does not support {' + '.join(map(repr, spec.steps))}"
    if spec.dropout:
        return f"the fused kernel does not support dropout on {device.type}"
    if region_mask is None:
        return f"the mask {spec.mask} is not a short list of rectangles"
    return None


def _name_operators(spec: AttentionSpec, groups: tuple[fused.BatchBlocks, ...], *, has_bias: bool) -> str:
    """Return which operators compute the blocks, where a device has several."""
    device, dtype = spec.signature.device, spec.signature.dtype
    if len(operators.OPERATORS[operators.platform_of(device)]) == 1:
        return ""
    dim = max(spec.signature.query[-1], spec.signature.value[-1])
    found = [
        operators.find_operator(
            device,
            dtype,
            dim,
            has_bias=has_bias or block.kind is BlockKind.DENSE,
            off_corner=block.kind is BlockKind.CAUSAL and block.height != block.width,
        )
        for group in groups
        for block in group.blocks
    ]
    titles = sorted({operator.title for operator in found if operator is not None})
    return f" ({' and '.join(titles)})" if titles else ""


def group_batch_rows(region_mask: RegionMask) -> list[tuple[slice, tuple[Region, ...]]]:
    """Group neighbouring batch rows that have the same regions."""
    if len(set(region_mask.regions)) == 1:
        return [(slice(None), region_mask.regions[0])]
    groups: list[tuple[slice, tuple[Region, ...]]] = []
    for row, regions in enumerate(region_mask.regions):
        if groups and groups[-1][1] == regions:
            groups[-1] = (slice(groups[-1][0].start, row + 1), regions)
        else:
            groups.append((slice(row, row + 1), regions))
    return groups


def _make_streaming_plan(spec: AttentionSpec, region_mask: RegionMask | None) -> streaming.StreamingPlan:
    sizes = spec.sizes
    block = block_sizes(spec.signature.device)
    columns = min(block.streaming_columns, max(sizes.keys, 1))
    rows = block.streaming_cells // (columns * max(sizes.batch * sizes.heads, 1)) // block.min_rows * block.min_rows
    rows = min(max(rows, block.min_rows), block.max_rows, max(sizes.queries, 1))
    everything = RegionMask((band(sizes.queries, sizes.keys, None, None),))
    groups = tuple(
        streaming.BatchRegions(batch, regions) for batch, regions in group_batch_rows(region_mask or everything)
    )
    keys_per_row = max((area(group.regions) for group in groups), default=0) // max(sizes.queries, 1)
    rows = min(rows, max(block.min_rows, keys_per_row))  # high blocks of a narrow band are mostly outside it
    exact = region_mask is not None and region_mask.key_mask is None
    return streaming.StreamingPlan(groups, exact, rows, columns)
