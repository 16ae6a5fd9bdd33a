"""What this installation consists of: versions, threads, devices and extras.

Extras are looked up in the metadata of installed packages and are not imported.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from attnscope.extras import EXTRAS
from attnscope.version import __version__


def installation() -> dict[str, str]:
    """Versions and platform, by name."""
    return {
        "attnscope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version_or_missing("numpy"),
        "rich": version_or_missing("rich"),
        "platform": platform.platform(),
    }


def machine() -> dict[str, str]:
    """Cores, threads and devices, by name."""
    accelerator = torch.accelerator.current_accelerator()
    unknown = "; attention streams there, which this project's tests have never run: see --verify"
    return {
        "cores": f"{cores()}, {torch.backends.cpu.get_cpu_capability()}",
        "torch threads": f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between them",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        "accelerator": "none" if accelerator is None else f"{accelerator}{unknown}",
    }


def cores() -> str:
    """How many cores this process may use, and how many there are if that is more."""
    there = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    return str(there) if allowed == there else f"{allowed} of {there}"


def extras() -> dict[str, str]:
    """What each extra brings: the version of each module, or how to install what is missing."""
    found = {}
    for extra, modules in EXTRAS.items():
        versions = {module: version_or_missing(module) for module in modules}
        told = ", ".join(f"{module} {number}" for module, number in versions.items())
        is_complete = "missing" not in versions.values()
        found[f"[{extra}]"] = told if is_complete else f'{told}; pip install "attnscope[{extra}]"'
    return found


def version_or_missing(distribution: str) -> str:
    """The installed version of a distribution, found without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"
