"""No common misspelling in docs and sources. The words that codespell takes for one are listed in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKED = [*(path.name for path in sorted(ROOT.glob("*.md"))), "docs", "src", "scripts", "benchmarks"]

pytest.importorskip("codespell_lib", reason="codespell is not installed: run scripts/setup")


def misspellings(*paths: str | Path) -> str:
    """What codespell prints about files, with the settings of the project."""
    command = [sys.executable, "-m", "codespell_lib", "--toml", "pyproject.toml", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout


def test_docs_and_sources_are_spelled_right() -> None:
    assert misspellings(*CHECKED) == ""


def test_a_misspelling_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The head recei" + "ves the token.\n")
    assert misspellings(page) == ""
    page.write_text("The head recie" + "ves the token.\n")
    assert "==> receives" in misspellings(page)
