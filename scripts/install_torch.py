"""Install the torch that constraints.txt pins, and refuse a build that drags in CUDA packages.

The resolver is asked first what it would install; the gigabytes are downloaded only when the answer is small.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
CUDA_PACKAGE = re.compile(r"nvidia-|cuda-|triton")


def main() -> None:
    """Ask the resolver, look at its plan, install."""
    torch = pinned_torch(CONSTRAINTS.read_text())
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), torch]
    plan = subprocess.run([*install, "--dry-run", "--report", "-"], check=True, stdout=subprocess.PIPE, text=True)
    if unwanted := cuda_packages(json.loads(plan.stdout)):
        sys.exit(
            f"setup: asked for {torch}, and this package index answers with a build for CUDA: {', '.join(unwanted)}.\n"
            "Development and tests need the CPU build. Install that first, then run scripts/setup again:\n"
            f"  .venv/bin/pip install {torch} --index-url https://download.pytorch.org/whl/cpu"
        )
    subprocess.run(install, check=True)


def pinned_torch(constraints: str) -> str:
    """The line `torch==...` of a constraints file."""
    return next(line for line in constraints.splitlines() if line.startswith("torch=="))


def cuda_packages(report: dict) -> list[str]:
    """The names in a pip installation report that only a CUDA build needs."""
    names = (item["metadata"]["name"].lower() for item in report["install"])
    return sorted(name for name in names if CUDA_PACKAGE.match(name))


if __name__ == "__main__":
    main()
