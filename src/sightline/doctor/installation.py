"""What this installation consists of: versions, threads, devices and extras.

Extras are looked up in the metadata of installed packages and are not imported.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sightline.extras import EXTRAS
from sightline.version import __version__


def installation() -> dict[str, str]:
    """Versions, platform, threads and devices, by name."""
    return {
        "sightline": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version_or_missing("numpy"),
        "platform": platform.platform(),
        "cpu": f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "torch threads": str(torch.get_num_threads()),
        "accelerator": str(torch.accelerator.current_accelerator() or "none"),
    }


def extras() -> dict[str, str]:
    """What each extra brings, with the version of each module or `missing`."""
    return {
        f"[{extra}]": ", ".join(f"{module} {version_or_missing(module)}" for module in modules)
        for extra, modules in EXTRAS.items()
    }


def version_or_missing(distribution: str) -> str:
    """The installed version of a distribution, found without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"


def engines() -> dict[str, str]:
    """Which engine serves plain scores under structured masks, by device, and whether our tests run there."""
    table = {"cpu": "fused (fp64, fp32, bf16, fp16), streaming for other scores and masks; tested"}
    table |= dict.fromkeys(("cuda", "mps", "xpu"), "streaming; never run by this project's tests, see --verify")
    return {f"engine on {device}": engine for device, engine in table.items()}


def show(console: Console) -> None:
    """Print the report: a table on a terminal, lines of name, tab, value elsewhere."""
    facts = installation() | engines() | extras()
    if not console.is_terminal:
        for name, value in facts.items():
            console.file.write(f"{name}\t{value}\n")
        return
    table = Table("what", "found")
    for name, value in facts.items():
        table.add_row(escape(name), escape(value))  # [models] is a name here, not markup
    console.print(table)
