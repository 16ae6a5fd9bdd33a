"""The Triton kernels, compiled for GPUs that are not present: resources, instructions, and a roofline for one H100.

Nothing here runs on a GPU. `python -m benchmarks kernels` compiles head dim 128 in bf16. `--size full` also compiles
other head dims and fp32, which takes about an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from attnscope.attention.triton.configs import ARCHITECTURES, Config
from attnscope.bench import Size
from attnscope.bench.report import Table
from benchmarks.compiled_kernels import KERNELS, Compiled, compile_kernel, find_kernel_config, max_spill_bytes
from benchmarks.gpu_survey import estimate_surveys
from benchmarks.roofline import (
    EFFICIENCY,
    FLASH_ATTENTION_3,
    GOAL,
    Clocks,
    count_clocks,
    flash_attention_clocks,
    overlap_for,
)

HEAD_DIMS = (64, 128, 256)
KEPT = {"rows": "block_rows", "columns": "block_keys"}  # what a program keeps while it reads the other operand


class Multiprocessor(NamedTuple):
    """What the programs on one streaming multiprocessor (CUDA) or compute unit (ROCm) share."""

    registers: int  #: of 32 bits
    shared_bytes: int
    reserved_bytes: int  #: shared memory that each program takes in addition


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(65_536, 167_936, 1024),
    "sm_90": Multiprocessor(65_536, 233_472, 1024),
    "sm_100": Multiprocessor(65_536, 233_472, 1024),
    "sm_120": Multiprocessor(65_536, 102_400, 1024),
    "gfx942": Multiprocessor(131_072, 65_536, 0),
    "gfx950": Multiprocessor(131_072, 163_840, 0),
}
"""Of the largest device of each target."""
REGISTER_STEP = 8  # registers per thread are rounded up to a multiple of it


def count_programs(target: str, compiled: Compiled, num_warps: int) -> int:
    """Return how many programs fit on a multiprocessor at a time, by registers and shared memory."""
    registers, shared, reserved = MULTIPROCESSORS[target]
    threads = num_warps * ARCHITECTURES[target].warp_size
    by_registers = registers // (-(-compiled.registers // REGISTER_STEP) * REGISTER_STEP * threads)
    needed = compiled.shared_bytes + reserved
    return min(by_registers, shared // needed) if needed else by_registers


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Compile, and yield the tables."""
    resources = Table(
        title="Resources",
        comparison="Causal attention without score modifiers. Bound: no spills (in fp32, at most 256 bytes above head "
        "dim 128 and for neighbours, and 1,024 bytes for both together), no atomics, and shared memory that the "
        "smallest device of the target has. Programs: how many fit on a multiprocessor at a time.",
        columns=("target", "kernel", "head dim", "dtype", "tile", "warps", "stages", "registers", "shared memory",
                 "spills", "programs", "bound kept"),
    )  # fmt: skip
    instructions = Table(
        title="Instructions per cell",
        comparison="Instructions of a thread per cell in the loop over tiles without a mask, counted in SASS, in bf16.",
        columns=("target", "kernel", "head dim", "all", "FMA pipe", "ALU pipe", "MUFU"),
    )
    dims, dtypes = size.choose(small=((128,), ("bf16",)), full=(HEAD_DIMS, ("bf16", "fp32")))
    clocks = {}
    for target, dtype, head_dim, kernel in product(ARCHITECTURES, dtypes, dims, KERNELS):
        step(f"{kernel} for {target}, head dim {head_dim}, {dtype}")
        config = find_kernel_config(kernel, target, dtype, head_dim)
        compiled = compile_kernel(kernel, target, config, dtype, head_dim)
        _add_resources(resources, (target, kernel, head_dim, dtype), config, compiled)
        if compiled.loop is not None and dtype == "bf16" and kernel in KEPT:
            instructions.add(target, kernel, str(head_dim), *(f"{each:.2f}" for each in compiled.loop))
            if target == "sm_90":
                clocks[kernel, head_dim] = count_clocks(compiled.loop, head_dim, getattr(config, KEPT[kernel]))
    yield resources
    yield instructions
    yield _roofline(clocks)
    yield estimate_surveys(sum(clocks[kernel, 128].serial for kernel in KEPT))


def _add_resources(table: Table, entry: tuple[str, str, int, str], config: Config, compiled: Compiled) -> None:
    target, kernel, head_dim, dtype = entry
    fits = compiled.shared_bytes <= ARCHITECTURES[target].shared_bytes
    table.add(
        target, kernel, str(head_dim), dtype, f"{config.block_rows} x {config.block_keys}", str(config.num_warps),
        str(config.num_stages), str(compiled.registers), f"{compiled.shared_bytes:,} bytes",
        f"{compiled.spill_bytes} bytes", str(count_programs(target, compiled, config.num_warps)),
        met=fits and compiled.spill_bytes <= max_spill_bytes(kernel, dtype, head_dim) and not compiled.atomics,
    )  # fmt: skip


def _roofline(clocks: Mapping[tuple[str, int], Clocks]) -> Table:
    """Predicted clocks of both passes on an H100, and their ratio to a forward call of FlashAttention-3."""
    table = Table(
        title="Roofline of one H100",
        comparison=f"Clocks per cell and streaming multiprocessor at {EFFICIENCY:.0%} of the limit, computed from the "
        "instructions above, not measured. Ratios are to a forward call of FlashAttention-3 at "
        f"{FLASH_ATTENTION_3:.0%} of the peak. Overlapped: matrix products and arithmetic of several programs at the "
        "same time; serial: one after the other. Overlap for the goal: the share of the possible overlap at which both "
        f"passes cost {GOAL} forward calls.",
        columns=("kernel", "head dim", "matrix products", "arithmetic", "L2 cache", "overlapped", "serial",
                 "ratio overlapped", "ratio serial", "overlap for the goal"),
    )  # fmt: skip
    for head_dim in HEAD_DIMS:
        flash = flash_attention_clocks(head_dim)
        passes = {kernel: clocks[kernel, head_dim] for kernel in KEPT if (kernel, head_dim) in clocks}
        lines = [
            (kernel, [f"{part:.3f}" for part in each], each.overlapped, each.serial, "")
            for kernel, each in passes.items()
        ]
        if len(passes) == len(KEPT):
            low, high = (sum(getattr(each, kind) for each in passes.values()) for kind in ("overlapped", "serial"))
            lines.append(("both", [""] * 3, low, high, f"{overlap_for(GOAL * flash, low, high):.0%}"))
        for name, parts, low, high, overlap in lines:
            ratios = f"{low / flash:.2f}", f"{high / flash:.2f}"
            table.add(name, str(head_dim), *parts, f"{low:.3f}", f"{high:.3f}", *ratios, overlap)
    return table
