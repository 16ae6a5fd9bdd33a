"""Whether this checkout can be released: addresses filled in, one version everywhere, a dated changelog, a clean tree.

In: the repository. Out: exit code 1 and one line for each thing that is missing. Needs nothing but Python and git.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = {"repository": r"https://\S+", "documentation": r"https://\S+", "contact": r"\S+@\S+\.\S+"}


def package_version(root: Path) -> str:
    """The version that the package has."""
    text = (root / "src/attnscope/version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    assert found, "src/attnscope/version.py has no line __version__ = ..."
    return found[1]


def missing_addresses(root: Path) -> list[str]:
    """What is empty or malformed in [tool.attnscope.project]."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["attnscope"]["project"]
    return [
        f"pyproject.toml: [tool.attnscope.project] {name} = {settings.get(name)!r}; expected {pattern}"
        for name, pattern in ADDRESS.items()
        if not re.fullmatch(pattern, settings.get(name) or "")
    ]


def version_faults(root: Path, tag: str | None) -> list[str]:
    """Where changelog, citation or tag do not have the version of the package."""
    version, faults = package_version(root), []
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## .*$", changelog, re.MULTILINE)
    if not heading or not re.fullmatch(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", heading[0]):
        got = heading[0] if heading else "no heading"
        faults.append(f"CHANGELOG.md: expected first '## [{version}] - YYYY-MM-DD', got {got!r}")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {version}\n" not in citation:
        faults.append(f"CITATION.cff: expected 'version: {version}'")
    if tag is not None and tag != f"v{version}":
        faults.append(f"tag: expected v{version}, got {tag}")
    return faults


def tree_faults(root: Path) -> list[str]:
    """Files that differ from the last commit."""
    command = ["git", "status", "--porcelain"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [f"not committed: {line[3:]}" for line in done.stdout.splitlines()]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Print what is missing; 0 if nothing is."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--tag", help="the tag that is released")
    parser.add_argument("--version", action="store_true", help="print the version and check nothing")
    options = parser.parse_args(arguments)
    if options.version:
        print(package_version(root))
        return 0
    faults = [*missing_addresses(root), *version_faults(root, options.tag), *tree_faults(root)]
    for fault in faults:
        print(f"release: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
