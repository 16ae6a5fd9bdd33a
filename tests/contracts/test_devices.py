"""Devices are those that can be used, and a report names them without naming the machine."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnscope.contracts import describe_device, devices, find_devices
from attnscope.doctor import collect

CPU = torch.device("cpu")


def test_the_cpu_comes_first() -> None:
    assert find_devices()[0] == CPU


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a real one")
def test_an_accelerator_that_torch_supports_but_the_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    assert find_devices() == [CPU]
    found = collect()
    assert found["machine"]["accelerators"] == "none"
    assert not any(name.endswith("cuda") for name in found["kernels"])


def test_every_accelerator_is_found_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert find_devices() == [CPU, torch.device("cuda", 0), torch.device("cuda", 1)]


def test_a_cpu_is_described_by_its_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Example 9000\nprocessor\t: 1\nmodel name\t: Example 9000\n")
    monkeypatch.setattr(devices, "CPU_INFO", info)
    found = describe_device(CPU)
    assert found["device"] == "Example 9000"
    assert found["platform"] == "cpu"
    assert found["architecture"] == platform.machine()
    assert list(found) == ["device", "platform", "architecture", "triton"]
    assert platform.node() not in found.values()


def fake_cuda(monkeypatch: pytest.MonkeyPatch, hip: str | None) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", None if hip else "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    )


def test_cuda_is_described_by_capability_driver_and_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, hip=None)
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 570.86.10\necho 570.86.10\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = describe_device(torch.device("cuda", 0))
    assert found | {"triton": ""} == {
        "device": "Some GPU",
        "platform": "cuda",
        "architecture": "sm_90",
        "driver": "570.86.10",
        "runtime": "CUDA 12.8",
        "triton": "",
    }


def test_rocm_is_told_apart_from_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, hip="7.1")
    monkeypatch.setattr(devices, "AMD_DRIVER", tmp_path / "missing")
    found = describe_device(torch.device("cuda", 0))
    assert (found["platform"], found["architecture"]) == ("rocm", "gfx942")
    assert (found["driver"], found["runtime"]) == ("unknown", "ROCm 7.1")


def test_a_driver_that_cannot_be_asked_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, hip=None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_device(torch.device("cuda", 0))["driver"] == "unknown"
