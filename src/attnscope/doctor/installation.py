"""The installation: versions, threads, devices and extras.

Extras are looked up in the metadata of installed packages and are not imported.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from attnscope.contracts import describe_device, find_devices
from attnscope.extras import EXTRAS
from attnscope.version import __version__


def installation() -> dict[str, str]:
    """Return versions and platform by name."""
    return {
        "attnscope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version_or_missing("numpy"),
        "rich": version_or_missing("rich"),
        "platform": platform.platform(),
    }


def machine() -> dict[str, str]:
    """Return cores, threads and devices by name."""
    accelerators = [describe_accelerator(device) for device in find_devices()[1:]]
    return {
        "cores": f"{cores()}, {torch.backends.cpu.get_cpu_capability()}",
        "torch threads": f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between them",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        "accelerators": "; ".join(accelerators) + "; check them by --verify" if accelerators else "none",
    }


def describe_accelerator(device: torch.device) -> str:
    """Return index, name, architecture and driver of an accelerator."""
    facts = describe_device(device)
    return f"{device} {facts['device']} ({facts['architecture']}, driver {facts['driver']}, {facts['runtime']})"


def cores() -> str:
    """Return how many cores this process may use, and of how many."""
    total = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return str(total) if allowed == total else f"{allowed} of {total}"


def extras() -> dict[str, str]:
    """Return the module versions of each extra, or how to install what is missing."""
    found = {}
    for extra, modules in EXTRAS.items():
        versions = {module: version_or_missing(module) for module in modules}
        text = ", ".join(f"{module} {number}" for module, number in versions.items())
        is_complete = "missing" not in versions.values()
        found[f"[{extra}]"] = text if is_complete else f'{text}; pip install "attnscope[{extra}]"'
    return found


def version_or_missing(distribution: str) -> str:
    """Return the installed version of a distribution, without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"
