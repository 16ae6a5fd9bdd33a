"""The kernels that are told are those that carry the calls out."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnscope.attention import operators
from attnscope.attention.operation import _cached_plan
from attnscope.doctor import kernels as doctor
from attnscope.doctor.kernels import KINDS, UNFUSED, Kind, find_kernel, kernels

CPU = torch.device("cpu")


def tensors(kind: Kind, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query = torch.randn(doctor.BATCH, doctor.HEADS, doctor.TOKENS, doctor.DIM, dtype=dtype)
    key = torch.randn(doctor.BATCH, kind.key_heads, doctor.TOKENS, doctor.DIM, dtype=dtype)
    return query, key, torch.randn(*key.shape[:3], kind.value_dim, dtype=dtype)


@pytest.mark.parametrize("dtype", doctor.DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_seen_is_what_torch_chooses(kind: Kind, dtype: torch.dtype) -> None:
    query, key, value = tensors(kind, dtype)
    arguments = kind.sdpa_arguments(CPU)
    seen = find_kernel(lambda: F.scaled_dot_product_attention(query, key, value, **arguments))
    chosen = torch.ops.aten._fused_sdp_choice(query, key, value, **arguments)
    assert seen == {SDPBackend.MATH.value: UNFUSED, SDPBackend.FLASH_ATTENTION.value: "flash"}[chosen]


def test_a_call_that_builds_the_matrix_is_told_so() -> None:
    query, key, value = tensors(KINDS[0], torch.float32)
    with sdpa_kernel(SDPBackend.MATH):
        assert find_kernel(lambda: F.scaled_dot_product_attention(query, key, value)) == UNFUSED
    assert find_kernel(lambda: F.scaled_dot_product_attention(query, key, value)) == "flash"


def test_attend_takes_the_fused_kernel_for_every_kind_on_this_cpu() -> None:
    found = {name: report for name, report in kernels().items() if name.endswith(", cpu")}
    assert list(found) == [f"{kind.name}, cpu" for kind in KINDS]
    for report in found.values():
        assert "attnscope fused by flash (float32, bfloat16)" in report
        assert "streaming" not in report


def test_dtypes_that_go_different_ways_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "describe_call", lambda kind, device, dtype: f"in {dtype.itemsize} bytes")
    assert kernels()["causal, cpu"] == "in 4 bytes (float32); in 2 bytes (bfloat16)"


def test_operators_of_another_form_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels()["fused kernel"] == "available"
    monkeypatch.setitem(operators.SCHEMA_MISMATCHES, "cpu", "torch 9.9 has another signature")
    _cached_plan.cache_clear()
    try:
        found = kernels()
    finally:
        _cached_plan.cache_clear()
    assert found["fused kernel"] == "not available: torch 9.9 has another signature; streaming is used"
    assert found["causal, cpu"] == "torch flash, attnscope streaming (float32, bfloat16)"
