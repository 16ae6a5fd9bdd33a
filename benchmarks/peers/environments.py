"""A virtual environment for each peer, made once and kept in the user's cache.

In: what pip is asked for. Out: the Python that has it. Does not know: what is measured.

An environment lies above ours: what is installed here can be imported there, torch above all, so that everyone is
measured on the same torch and nothing large is installed twice. What a peer wants otherwise is installed into its own
environment and goes first there. pip never removes or replaces what lies outside of the environment it works on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from attnscope.errors import AttnScopeError

STAMP = "installed.json"
BENEATH = "beneath.pth"
LIST = """
import json, importlib.metadata as metadata
found = {}
for one in metadata.distributions():  # what goes first in an environment comes first here, too
    found.setdefault(one.name, one.version)
print(json.dumps(found))
"""


class NotInstalledError(AttnScopeError):
    """A peer that could not be installed."""


def cache_folder() -> Path:
    """Where environments and what else is fetched for the peers are kept: XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnscope" / "peers"


def python_with(requirements: Sequence[str], folder: Path) -> Path:
    """The Python of an environment with these packages, installed if they are not; ours, if none are asked for."""
    if not requirements:
        return Path(sys.executable)
    python = folder / "bin" / "python"
    beneath = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    wanted = json.dumps({"requirements": list(requirements), "above": beneath, "python": sys.version})
    if python.exists() and (folder / STAMP).exists() and (folder / STAMP).read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    inside = next((folder / "lib").glob("python*/site-packages"))
    (inside / BENEATH).write_text("\n".join(beneath) + "\n", encoding="utf-8")
    _install(python, requirements)
    (folder / STAMP).write_text(wanted, encoding="utf-8")
    return python


def _install(python: Path, requirements: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()[-1:]
        raise NotInstalledError(
            f"peers: {' '.join(requirements)} could not be installed by pip: {' '.join(said) or 'it said nothing'}"
        )


def versions_in(python: Path) -> dict[str, str]:
    """Every distribution that a Python can import, in lower case with dashes, and its version."""
    ran = subprocess.run([str(python), "-c", LIST], capture_output=True, text=True, check=True)
    return {name.lower().replace("_", "-"): version for name, version in json.loads(ran.stdout).items()}
