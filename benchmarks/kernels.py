"""The Triton kernels, compiled for GPUs that are not present: resources, instructions, and a roofline for one H100.

Nothing here runs on a GPU. `python -m benchmarks kernels` compiles head dim 128 in bf16, and `--size full` compiles all
configurations, which takes about half an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from attnscope.attention.triton.configs import ARCHITECTURES, CONFIGS, HEAD_DIMS, Config
from attnscope.bench import Size
from attnscope.bench.report import Table
from benchmarks.compiled_kernels import Compiled, HotLoop, compile_kernel

REGISTERS, SHARED_BYTES = 65_536, 233_472  # of one streaming multiprocessor of an H100


class Rates(NamedTuple):
    """What one streaming multiprocessor does per clock."""

    flops: float  #: of matrix products in bf16
    issue: float  #: instructions of all threads
    alu: float  #: comparisons, selections and integer operations
    mufu: float  #: exponentials
    l2_bytes: float  #: read from the L2 cache


H100 = Rates(flops=4096, issue=128, alu=64, mufu=16, l2_bytes=28)
FLASH_ATTENTION_3 = 0.66
"""The share of the peak that FlashAttention-3 reaches: 650 of 989 TFLOP/s, causal, head dim 128."""
EFFICIENCY = 0.8  # of a kernel at its limit
KEPT = {"rows": "block_rows", "columns": "block_keys"}  # what a program keeps while it reads the other operand


class Clocks(NamedTuple):
    """Clocks per cell and streaming multiprocessor."""

    products: float  #: of the matrix product
    arithmetic: float  #: the slowest of issue, comparisons and exponentials
    l2_cache: float  #: to read the operand that is not kept

    @property
    def overlapped(self) -> float:
        """With everything at the same time, as several programs on a multiprocessor allow."""
        return max(self) / EFFICIENCY

    @property
    def serial(self) -> float:
        """With arithmetic after the matrix product; only reads overlap."""
        return max(self.products + self.arithmetic, self.l2_cache) / EFFICIENCY


def count_clocks(loop: HotLoop, head_dim: int, kept: int, rates: Rates = H100) -> Clocks:
    """Return the clocks of a cell of the hot loop in bf16; a program keeps `kept` queries or keys.

    >>> count_clocks(HotLoop(all=12.8, fma=6.4, alu=3.2, mufu=0.8), 128, 64, H100._replace(l2_bytes=32))
    Clocks(products=0.0625, arithmetic=0.1, l2_cache=0.125)
    """
    arithmetic = max(loop.all / rates.issue, loop.alu / rates.alu, loop.mufu / rates.mufu)
    return Clocks(2 * head_dim / rates.flops, arithmetic, 2 * head_dim / kept / rates.l2_bytes)


def flash_attention_clocks(head_dim: int, rates: Rates = H100) -> float:
    """Return the clocks of a cell in a forward call of FlashAttention-3, which has two matrix products."""
    return 4 * head_dim / rates.flops / FLASH_ATTENTION_3


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Compile, and yield the tables."""
    resources = Table(
        title="Resources",
        comparison="Causal attention without score modifiers. Bound: no spills, no atomics, and shared memory that the "
        "smallest device of the target has.",
        columns=("target", "kernel", "head dim", "dtype", "tile", "warps", "stages", "registers", "shared memory",
                 "spills", "programs per SM", "bound kept"),
    )  # fmt: skip
    instructions = Table(
        title="Instructions per cell",
        comparison="Instructions of a thread per cell in the loop over tiles without a mask, counted in SASS.",
        columns=("target", "kernel", "head dim", "all", "FMA pipe", "ALU pipe", "MUFU"),
    )
    loops = {}
    for target, kernel, head_dim, itemsize in _entries(size):
        config, dtype = CONFIGS[target][kernel][head_dim, itemsize], "bf16" if itemsize == 2 else "fp32"
        step(f"{kernel} for {target}, head dim {head_dim}, {dtype}")
        compiled = compile_kernel(kernel, target, config, dtype, head_dim)
        _add_resources(resources, (target, kernel, str(head_dim), dtype), config, compiled)
        if compiled.loop is not None and dtype == "bf16" and kernel in KEPT:  # loops with one matrix product per cell
            loops[target, kernel, head_dim] = compiled.loop
            instructions.add(target, kernel, str(head_dim), *(f"{each:.2f}" for each in compiled.loop))
    yield resources
    yield instructions
    yield _roofline(loops)


def _entries(size: Size) -> list[tuple[str, str, int, int]]:
    dims, itemsizes = size.choose(small=((128,), (2,)), full=(HEAD_DIMS, (2, 4)))
    return [
        (target, kernel, head_dim, itemsize)
        for target, kernels in CONFIGS.items()
        for kernel, configs in kernels.items()
        for head_dim, itemsize in configs
        if head_dim in dims and itemsize in itemsizes
    ]


def _add_resources(table: Table, entry: tuple[str, ...], config: Config, compiled: Compiled) -> None:
    by_registers = REGISTERS // (compiled.registers * config.num_warps * 32)
    programs = min(by_registers, SHARED_BYTES // (compiled.shared_bytes + 1024))
    fits = compiled.shared_bytes <= ARCHITECTURES[entry[0]].shared_bytes
    table.add(
        *entry, f"{config.block_rows} x {config.block_keys}", str(config.num_warps), str(config.num_stages),
        str(compiled.registers), f"{compiled.shared_bytes:,} bytes", f"{compiled.spill_bytes} bytes",
        str(programs) if entry[0] == "sm_90" else "", met=fits and not compiled.spill_bytes and not compiled.atomics,
    )  # fmt: skip


def _roofline(loops: dict[tuple[str, str, int], HotLoop]) -> Table:
    """Predicted clocks of both passes on an H100, and their ratio to a forward call of FlashAttention-3."""
    table = Table(
        title="Roofline of one H100",
        comparison=f"Clocks per cell and streaming multiprocessor at {EFFICIENCY:.0%} of the limit, computed from the "
        "instructions above, not measured. Ratios are to a forward call of FlashAttention-3 at "
        f"{FLASH_ATTENTION_3:.0%} of the peak. Overlapped: matrix products and arithmetic of several programs at the "
        "same time; serial: one after the other.",
        columns=("kernel", "head dim", "matrix products", "arithmetic", "L2 cache", "overlapped", "serial",
                 "ratio overlapped", "ratio serial"),
    )  # fmt: skip
    for head_dim in HEAD_DIMS:
        clocks = {}
        for name, kept in KEPT.items():
            if loop := loops.get(("sm_90", name, head_dim)):
                config = CONFIGS["sm_90"][name][head_dim, 2]
                each = clocks[name] = count_clocks(loop, head_dim, getattr(config, kept))
                _add_clocks(table, name, head_dim, [f"{part:.3f}" for part in each], each.overlapped, each.serial)
        if len(clocks) == len(KEPT):
            together = [sum(getattr(each, kind) for each in clocks.values()) for kind in ("overlapped", "serial")]
            _add_clocks(table, "both", head_dim, [""] * 3, *together)
    return table


def _add_clocks(table: Table, name: str, head_dim: int, parts: list[str], overlapped: float, serial: float) -> None:
    flash = flash_attention_clocks(head_dim)
    ratios = (f"{clocks / flash:.2f}" for clocks in (overlapped, serial))
    table.add(name, str(head_dim), *parts, f"{overlapped:.3f}", f"{serial:.3f}", *ratios)
