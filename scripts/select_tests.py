"""Print what `scripts/check` checks after a change: tests, or with `--types` the files whose types are checked.

Tests are those of the packages that changed, and a core that always runs. Types are checked in the files that changed
and in those that import them. What changed: files that differ from the last commit, or, where nothing does, those of
the last commit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
CORE = (
    "tests/attention/test_contracts.py",
    "tests/matrix/test_use.py",
    "tests/recording/test_record.py",
    "tests/heads/test_scores.py",
    "tests/explorer/test_guard.py",
    "tests/cli/test_main.py",
    "tests/project/test_layers.py",
    "tests/project/test_import.py",
)
"""Quick tests of the contracts that a change elsewhere is most likely to break."""
PROJECT = "tests/project"


def main() -> None:
    """Print one path per line."""
    chosen = select_typed if sys.argv[1:] == ["--types"] else select
    print("\n".join(chosen(changed_files(), ROOT)))


def changed_files() -> list[str]:
    """Paths of files that differ from the last commit, new ones included; of the last commit, if there are none."""
    changed = git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    return changed or git("diff", "--name-only", "HEAD~1", "HEAD")


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def select(changed: Iterable[str], root: Path) -> list[str]:
    """The tests to run, without those inside a folder that is run as a whole."""
    found = {*CORE, *(path for name in changed for path in tests_of(PurePosixPath(name), root))}
    folders = {path for path in found if (root / path).is_dir()}
    return sorted(path for path in found if not any(str(parent) in folders for parent in PurePosixPath(path).parents))


def tests_of(changed: PurePosixPath, root: Path) -> list[str]:
    """The tests of one file that changed."""
    match changed.parts:
        case ["src", "attnscope", package, _, *_]:
            candidates = [f"tests/{package}", str(changed)]  # the file itself, for its doctests
        case ["src", *_]:
            candidates = [PROJECT, f"tests/test_{changed.name}", str(changed)]
        case ["tests", *_] if changed.name.startswith("test_") and changed.suffix == ".py":
            candidates = [str(changed)]
        case ["tests", package, _, *_]:
            candidates = [f"tests/{package}"]
        case ["web", *_]:
            candidates = ["tests/explorer"]
        case ["scripts", *_]:
            candidates = ["tests/scripts"]
        case ["benchmarks", "results", *_]:
            candidates = [f"{PROJECT}/test_figures.py"]
        case ["benchmarks", *_]:
            candidates = ["tests/benchmarks"]
        case _:
            candidates = [PROJECT]
    return [
        path for path in candidates if (root / path).exists() and (path.startswith("tests") or path.endswith(".py"))
    ]


def select_typed(changed: Iterable[str], root: Path) -> list[str]:
    """The Python files that changed, and the files of src that import one of them by its module."""
    files = {name for name in changed if name.endswith(".py") and (root / name).exists()}
    modules = {
        name.removeprefix("src/").removesuffix(".py").replace("/", ".") for name in files if name.startswith("src/")
    }
    if not modules:
        return sorted(files)
    imports = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(map(re.escape, sorted(modules)))})\b", re.MULTILINE)
    sources = (root / "src").rglob("*.py")
    importers = {str(path.relative_to(root)) for path in sources if imports.search(path.read_text(encoding="utf-8"))}
    return sorted(files | importers)


if __name__ == "__main__":
    sys.exit(main())
