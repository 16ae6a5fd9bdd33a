"""Creates a virtual environment for each library, once, in the user's cache.

An environment extends the current one: installed packages can be imported there, so that all libraries use the same
torch. Other requirements are installed into the new environment, where they take precedence. pip does not change the
current environment.
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

STAMP_FILE = "installed.json"
PTH_FILE = "parent_paths.pth"
LIST = """
import json, importlib.metadata as metadata
found = {}
for one in metadata.distributions():  # what goes first in an environment comes first here, too
    found.setdefault(one.name, one.version)
print(json.dumps(found))
"""


class NotInstalledError(AttnScopeError):
    """A library that could not be installed."""


def cache_folder() -> Path:
    """Return the cache folder: in XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnscope" / "peers"


def python_with(requirements: Sequence[str], folder: Path) -> Path:
    """Return the Python of an environment with these packages; install them if needed."""
    if not requirements:
        return Path(sys.executable)
    python = folder / "bin" / "python"
    parent_paths = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    wanted = json.dumps({"requirements": list(requirements), "above": parent_paths, "python": sys.version})
    if (
        python.exists()
        and (folder / STAMP_FILE).exists()
        and (folder / STAMP_FILE).read_text(encoding="utf-8") == wanted
    ):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    inside = next((folder / "lib").glob("python*/site-packages"))
    (inside / PTH_FILE).write_text("\n".join(parent_paths) + "\n", encoding="utf-8")
    _install(python, requirements)
    (folder / STAMP_FILE).write_text(wanted, encoding="utf-8")
    return python


def _install(python: Path, requirements: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        messages = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()[
            -1:
        ]
        raise NotInstalledError(
            f"peers: {' '.join(requirements)} could not be installed by pip: {' '.join(messages) or 'no message'}"
        )


def versions_in(python: Path) -> dict[str, str]:
    """Return the versions of all distributions of a Python, by normalised name."""
    ran = subprocess.run([str(python), "-c", LIST], capture_output=True, text=True, check=True)
    return {name.lower().replace("_", "-"): version for name, version in json.loads(ran.stdout).items()}
