"""The devices of this machine, and what identifies them in a report."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
AMD_DRIVER = Path("/sys/module/amdgpu/version")
UNKNOWN = "unknown"


def find_devices() -> list[torch.device]:
    """Return the CPU and all accelerators that can be used, each with its index.

    A build of torch may support an accelerator that the machine does not have: it is left out.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = 0 if accelerator is None else torch.accelerator.device_count()
    others = [] if accelerator is None else [torch.device(accelerator.type, index) for index in range(count)]
    return [torch.device("cpu"), *others]


def describe_device(device: torch.device) -> dict[str, str]:
    """Return name, platform, architecture, driver and runtime of a device, and the version of triton."""
    facts = {
        "device": device_name(device),
        "platform": device_platform(device),
        "architecture": device_architecture(device),
    }
    if device.type != "cpu":
        facts |= {"driver": driver_version(device), "runtime": runtime_version(device)}
    return facts | {"triton": triton_version()}


def device_platform(device: torch.device) -> str:
    """Return cpu, cuda, rocm, mps or xpu; torch calls ROCm devices cuda, too.

    >>> device_platform(torch.device("cpu"))
    'cpu'
    """
    return "rocm" if device.type == "cuda" and torch.version.hip is not None else device.type


def device_name(device: torch.device) -> str:
    """Return the model name of a device, such as NVIDIA H100 80GB HBM3."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "xpu":
        return torch.xpu.get_device_name(device)
    if device.type == "mps":
        return torch.backends.mps.get_name()
    return cpu_model()


def device_architecture(device: torch.device) -> str:
    """Return what kernels are compiled for: sm_90, gfx942; for other devices, the kind of machine."""
    match device_platform(device):
        case "cuda":
            return "sm_{}{}".format(*torch.cuda.get_device_capability(device))
        case "rocm":
            return torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        case "mps" | "xpu" as kind:
            return kind
    return platform.machine()


def driver_version(device: torch.device) -> str:
    """Return the version of the driver, or of macOS, which contains it."""
    match device_platform(device):
        case "cuda":
            return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
        case "rocm":
            return AMD_DRIVER.read_text(encoding="utf-8").strip() if AMD_DRIVER.exists() else UNKNOWN
        case "mps":
            return f"macOS {platform.mac_ver()[0]}"
        case "xpu":
            return torch.xpu.get_device_properties(device).driver_version
    return UNKNOWN


def runtime_version(device: torch.device) -> str:
    """Return the version of CUDA, ROCm or oneAPI that torch was built with."""
    match device_platform(device):
        case "cuda":
            return f"CUDA {torch.version.cuda}"
        case "rocm":
            return f"ROCm {torch.version.hip}"
        case "xpu":
            return f"oneAPI {torch.version.xpu}"
        case "mps":
            return "Metal"
    return UNKNOWN


def triton_version() -> str:
    """Return the installed version of triton, without importing it."""
    for distribution in ("triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-windows"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "missing"


def cpu_model() -> str:
    """Return the model name of the CPU."""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or UNKNOWN


def _first_line(command: list[str]) -> str:
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return found[0].strip() if found else UNKNOWN
