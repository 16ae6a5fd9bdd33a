"""The Triton kernels compile for every architecture within bounds of spills, registers, shared memory and atomics."""

from itertools import product

import pytest

from attnscope.attention.triton.configs import ARCHITECTURES, Config
from benchmarks.compiled_kernels import DTYPES, KERNELS, Compiled, compile_kernel, find_kernel_config, max_spill_bytes
from benchmarks.kernels import HEAD_DIMS, KEPT, MULTIPROCESSORS, count_programs
from benchmarks.roofline import count_clocks, flash_attention_clocks

MAX_REGISTERS = {"cuda": 255, "hip": 512}
THINNED = [
    ("sm_80", "rows", "fp32", 64),
    ("sm_90", "neighbours", "fp16", 32),
    ("sm_100", "largest key", "fp32", 256),
    ("sm_120", "bins", "bf16", 64),
    ("gfx942", "columns", "bf16", 128),
    ("gfx950", "products", "bf16", 96),
]
"""Every target, kernel and dtype, and head dims from 32 to 256."""
ALL = list(product(ARCHITECTURES, KERNELS, DTYPES, (32, 64, 96, 128, 256)))


def compiled(target: str, kernel: str, dtype: str, head_dim: int) -> Compiled:
    return compile_kernel(kernel, target, find_kernel_config(kernel, target, dtype, head_dim), dtype, head_dim)


def faults_of(found: Compiled, target: str, max_spills: int = 0) -> list[str]:
    known = ARCHITECTURES[target]
    bounds = {
        "bytes of spills": (found.spill_bytes, max_spills),
        "atomics": (found.atomics, 0),
        "bytes of shared memory": (found.shared_bytes, known.shared_bytes),
        "registers": (found.registers, MAX_REGISTERS[known.backend]),
    }
    return [f"{count} {what}, at most {most}" for what, (count, most) in bounds.items() if count > most]


@pytest.mark.parametrize(("target", "kernel", "dtype", "head_dim"), THINNED)
def test_a_kernel_keeps_its_bounds(target: str, kernel: str, dtype: str, head_dim: int) -> None:
    found = compiled(target, kernel, dtype, head_dim)
    assert faults_of(found, target, max_spill_bytes(kernel, dtype, head_dim)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kernel", "dtype", "head_dim"), ALL)
def test_every_kernel_keeps_its_bounds(target: str, kernel: str, dtype: str, head_dim: int) -> None:
    found = compiled(target, kernel, dtype, head_dim)
    assert faults_of(found, target, max_spill_bytes(kernel, dtype, head_dim)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kernel", "head_dim"), list(product(ARCHITECTURES, KERNELS, HEAD_DIMS)))
def test_all_score_modifiers_fit_into_shared_memory(target: str, kernel: str, head_dim: int) -> None:
    """They may spill registers, which is slow and not wrong."""
    config = find_kernel_config(kernel, target, "fp32", head_dim)
    found = compile_kernel(kernel, target, config, "fp32", head_dim, all_flags=True)
    assert found.shared_bytes <= ARCHITECTURES[target].shared_bytes


def test_the_thinned_set_has_every_target_kernel_and_dtype() -> None:
    for at, values in enumerate((ARCHITECTURES, KERNELS, DTYPES)):
        assert {entry[at] for entry in THINNED} == set(values)


def test_both_passes_on_an_h100_need_few_instructions() -> None:
    """The instructions per cell behind the roofline in docs/gpu.md."""
    clocks = []
    for kernel, most in (("rows", 11.5), ("columns", 5.0)):
        found = compiled("sm_90", kernel, "bf16", 128)
        assert faults_of(found, "sm_90") == []
        assert found.loop is not None
        assert found.loop.all <= most
        config = find_kernel_config(kernel, "sm_90", "bf16", 128)
        assert count_programs("sm_90", found, config.num_warps) >= 2
        clocks.append(count_clocks(found.loop, 128, getattr(config, KEPT[kernel])))
    low, high = (sum(getattr(each, kind) for each in clocks) for kind in ("overlapped", "serial"))
    assert low <= 1.1 * flash_attention_clocks(128)
    assert (low + high) / 2 <= 1.5 * flash_attention_clocks(128)


def test_spills_are_found() -> None:
    crowded = compile_kernel("columns", "sm_80", Config(128, 128, 4, 2), "bf16", 128)
    assert crowded.spill_bytes > 0
    assert f"{crowded.spill_bytes} bytes of spills, at most 0" in faults_of(crowded, "sm_80")


def test_programs_are_limited_by_registers_or_shared_memory() -> None:
    found = Compiled(255, 65_536, 0, 0, 0, None, {})
    assert MULTIPROCESSORS.keys() == ARCHITECTURES.keys()
    assert count_programs("sm_90", found, num_warps=4) == 2
    assert count_programs("sm_120", found, num_warps=4) == 1
    assert count_programs("gfx942", found._replace(shared_bytes=0), num_warps=4) == 2
