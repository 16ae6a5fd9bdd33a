"""The Triton kernels compile for every architecture without spills, within its shared memory and without atomics."""

import pytest

from attnscope.attention.triton.configs import ARCHITECTURES, CONFIGS, Config
from benchmarks.compiled_kernels import Compiled, compile_kernel
from benchmarks.kernels import count_clocks, flash_attention_clocks

THINNED = [("sm_80", "rows", 128, 2), ("gfx942", "columns", 128, 2)]
ALL = [
    (target, kernel, *which) for target, kernels in CONFIGS.items() for kernel in kernels for which in kernels[kernel]
]


def compiled(target: str, kernel: str, head_dim: int, itemsize: int) -> Compiled:
    config = CONFIGS[target][kernel][head_dim, itemsize]
    return compile_kernel(kernel, target, config, "bf16" if itemsize == 2 else "fp32", head_dim)


def faults_of(found: Compiled, target: str) -> list[str]:
    limit = ARCHITECTURES[target].shared_bytes
    faults = [f"{found.spill_bytes} bytes of spills"] if found.spill_bytes else []
    faults += [f"{found.shared_bytes} bytes of shared memory, at most {limit}"] if found.shared_bytes > limit else []
    return faults + ([f"{found.atomics} atomics"] if found.atomics else [])


@pytest.mark.parametrize(("target", "kernel", "head_dim", "itemsize"), THINNED)
def test_a_kernel_has_no_spills_and_fits_into_shared_memory(
    target: str, kernel: str, head_dim: int, itemsize: int
) -> None:
    assert faults_of(compiled(target, kernel, head_dim, itemsize), target) == []


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kernel", "head_dim", "itemsize"), ALL)
def test_every_configuration_has_no_spills_and_fits_into_shared_memory(
    target: str, kernel: str, head_dim: int, itemsize: int
) -> None:
    assert faults_of(compiled(target, kernel, head_dim, itemsize), target) == []


def test_both_passes_on_an_h100_need_few_instructions() -> None:
    """The instructions per cell behind the roofline in docs/gpu.md."""
    found = {kernel: compiled("sm_90", kernel, 128, 2) for kernel in ("rows", "columns")}
    assert [faults_of(each, "sm_90") for each in found.values()] == [[], []]
    clocks = []
    for kernel, most, kept in (("rows", 11.5, 128), ("columns", 5.0, 128)):
        loop = found[kernel].loop
        assert loop is not None
        assert loop.all <= most
        clocks.append(count_clocks(loop, 128, kept))
    assert sum(each.overlapped for each in clocks) <= 1.1 * flash_attention_clocks(128)


def test_spills_are_found() -> None:
    crowded = compile_kernel("rows", "sm_90", Config(128, 128, 4, 2), "bf16", 128)
    assert crowded.spill_bytes > 0
    assert faults_of(crowded, "sm_90") == [f"{crowded.spill_bytes} bytes of spills"]
