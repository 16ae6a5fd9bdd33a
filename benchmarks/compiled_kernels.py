"""Compiles the Triton kernels for GPUs that are not present, and reads what the assemblers made of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnscope.attention.triton.columns import column_kernel, product_kernel
from attnscope.attention.triton.configs import ARCHITECTURES, Config, find_config
from attnscope.attention.triton.launch import LARGEST_KEY_ROWS, LARGEST_KEY_WARPS, MAX_VALUES, match_config
from attnscope.attention.triton.matches import match_kernel
from attnscope.attention.triton.neighbours import largest_key_kernel, neighbour_kernel
from attnscope.attention.triton.rows import LANES, row_kernel
from attnscope.attention.triton.spread import spread_kernel
from benchmarks.roofline import HotLoop


class Kernel(NamedTuple):
    """A kernel, as one of the functions of `launch` calls it."""

    function: Any
    config: str  #: whose configurations it takes
    flags: Mapping[str, Any]  #: what causal attention without score modifiers asks of it
    all_flags: Mapping[str, Any]  #: what takes the most registers


SCORES = {"SOFTCAP": True, "ALIBI": True}
EVERYTHING = SCORES | {"HAS_SINKS": True, "CHOSEN": True, "FIND_KEY": True}
EVERYTHING |= {"POSITIVE_SCALE": False, "ONLY_BEFORE": False}
KERNELS = {
    "rows": Kernel(
        row_kernel,
        "rows",
        {"HAS_SINKS": False, "CHOSEN": False, "FIND_KEY": False, "POSITIVE_SCALE": True, "ONLY_BEFORE": True},
        EVERYTHING,
    ),
    "columns": Kernel(column_kernel, "columns", {"GROUP": 1, "MAXIMUM": False}, SCORES | {"MAXIMUM": True}),
    "bins": Kernel(column_kernel, "bins", {"GROUP": 16, "MAXIMUM": True}, SCORES),
    "spread": Kernel(spread_kernel, "rows", {}, SCORES),
    "matches": Kernel(match_kernel, "rows", {"P": 4, "PAIRINGS": 4}, SCORES),
    "products": Kernel(product_kernel, "products", {"C": MAX_VALUES}, SCORES),
    "neighbours": Kernel(neighbour_kernel, "rows", {}, SCORES),
    "largest key": Kernel(largest_key_kernel, "rows", {}, SCORES),
}
INT32_TENSORS = {"START", "STOP", "LEFT", "RIGHT", "FIRST", "LAST", "FULL_FIRST", "FULL_LAST", "EDGES"}
INT32_TENSORS |= {"CANDIDATES", "FOUND"}
DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
FMA_PIPE = {"FFMA", "FMUL", "FADD", "IMAD", "FFMA2", "FMUL2", "FADD2"}
ALU_PIPE = {"FMNMX", "FMNMX3", "FSEL", "FSETP", "SEL", "ISETP", "IADD3", "LOP3", "PRMT", "SHF", "LEA", "VIADD", "MOV"}
ALU_PIPE |= {"IMNMX", "VIMNMX", "F2FP", "PLOP3"}


class Compiled(NamedTuple):
    """What one kernel takes of one architecture."""

    registers: int
    shared_bytes: int
    spill_bytes: int  #: stack of NVIDIA kernels, private memory of AMD kernels
    scalar_spills: int  #: scalar registers of AMD kernels that are kept in vector registers
    atomics: int
    loop: HotLoop | None
    names: Mapping[str, int]  #: instructions of the hot loop


def find_kernel_config(name: str, architecture: str, dtype: str, head_dim: int) -> Config:
    """Return the configuration with which `launch` calls a kernel."""
    config = find_config(KERNELS[name].config, architecture, head_dim, DTYPES[dtype])
    if name == "largest key":
        config = config._replace(block_rows=LARGEST_KEY_ROWS, num_warps=LARGEST_KEY_WARPS)
    return match_config(config) if name == "matches" else config


def compile_kernel(
    name: str, architecture: str, config: Config, dtype: str, head_dim: int, *, all_flags: bool = False
) -> Compiled:
    """Compile a kernel as its launch function would, and read registers, memory and instructions."""
    kernel, known = KERNELS[name], ARCHITECTURES[architecture]
    width = max(1 << (head_dim - 1).bit_length(), 16)
    constants = {"M": config.block_rows, "N": config.block_keys, "D": width, "EVEN_D": width == head_dim}
    constants |= {"PRECISION": known.precision, "NUM_CANDIDATES": config.block_keys // LANES.value}
    constants |= {"SOFTCAP": False, "ALIBI": False, **kernel.flags, **(kernel.all_flags if all_flags else {})}
    names = kernel.function.arg_names
    constants = {argument: value for argument, value in constants.items() if argument in names}
    signature = {argument: _type_of(argument, constants, dtype) for argument in names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, (argument, kind) in enumerate(signature.items())
        if kind.startswith("*") or re.match(r"stride_[qk]", argument)
    }
    indexed = {(names.index(argument),): value for argument, value in constants.items()}
    source = ASTSource(kernel.function, signature, indexed, aligned)
    target = GPUTarget(known.backend, known.name, known.warp_size)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    compiled: Any = triton.compile(source, target=target, options=options)
    return _read_nvidia(compiled, width) if known.backend == "cuda" else _read_amd(compiled)


def max_spill_bytes(name: str, dtype: str, head_dim: int) -> int:
    """Return how much a kernel may spill: nothing, except in fp32, where queries in three parts fill the registers."""
    if dtype != "fp32":
        return 0
    if name == "neighbours":  # O(n) cells
        return 256 if head_dim <= 128 else 1024
    return 256 if head_dim > 128 else 0


def _type_of(argument: str, constants: Mapping[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument in ("Q", "K"):
        return f"*{dtype}"
    if argument.isupper():
        others = {"CHOSEN_KEYS": "*u8", "QUERY_IDS": "*i64", "KEY_IDS": "*i64"}
        return "*i32" if argument in INT32_TENSORS else others.get(argument, "*fp32")
    return "fp32" if argument in ("scale", "cap") else "i32"


def _read_nvidia(compiled: Any, width: int) -> Compiled:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage, sass = (
            subprocess.run([tools / "cuobjdump", option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", usage)
    assert found, usage
    registers, stack, local = map(int, found.groups())
    atomics = len(re.findall(r"\b(?:atom|red)\.", compiled.asm["ptx"]))
    loop, names = _hot_loop(_instructions(sass), width)
    return Compiled(registers, compiled.metadata.shared, stack + local, 0, atomics, loop, names)


def _instructions(sass: str) -> dict[int, str]:
    found = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", sass, re.MULTILINE)
    return {int(address, 16): text.strip() for address, text in found}


def _hot_loop(code: Mapping[int, str], width: int) -> tuple[HotLoop | None, Mapping[str, int]]:
    """The loop with matrix products that has the fewest instructions per cell."""
    loops = []
    for address, text in code.items():
        jump = re.search(r"\bBRA(?:\.\w+)*\s+(?:U?P\d+,\s*)?(?:`\(\S+\)|0x([0-9a-f]+))", text)
        if jump and jump[1] and int(jump[1], 16) <= address:
            body = [line for at, line in code.items() if int(jump[1], 16) <= at <= address]
            cells = sum(map(_products, body)) / width  # per warp
            if cells:
                loops.append((32 * len(body) / cells, cells, body))
    if not loops:
        return None, {}
    each, cells, body = min(loops, key=lambda loop: loop[0])
    names = Counter(re.sub(r"^@!?U?P[T\d]+\s+", "", line).split()[0].split(".")[0] for line in body)

    def per_cell(pipe: set[str]) -> float:
        return 32 * sum(count for name, count in names.items() if name in pipe) / cells

    return HotLoop(each, per_cell(FMA_PIPE), per_cell(ALU_PIPE), per_cell({"MUFU"})), names


def _products(line: str) -> float:
    """Multiplications of a matrix instruction that one warp is responsible for."""
    if found := re.search(r"\bHGMMA\.(\d+)x(\d+)x(\d+)", line):
        rows, columns, depth = map(int, found.groups())
        return rows * columns * depth / 4
    if found := re.search(r"\bHMMA\.(16)(8)(16|8|4)\b", line):
        rows, columns, depth = map(int, found.groups())
        return rows * columns * depth
    return 0


def _read_amd(compiled: Any) -> Compiled:
    text = compiled.asm["amdgcn"]

    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    atomics = len(re.findall(r"_atomic_", text))
    registers, spills = field("vgpr_count"), field("private_segment_fixed_size")
    return Compiled(registers, compiled.metadata.shared, spills, field("sgpr_spill_count"), atomics, None, {})
