"""The tests are tested too: each seeded bug, written into a copy of the source, must make them fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.seeded_bugs import SEEDED_BUGS

ROOT = Path(__file__).resolve().parents[2]


def test_every_seeded_bug_fits_the_source() -> None:
    """Each text occurs once, and its wrong version is a program."""
    assert len(SEEDED_BUGS) >= 60
    for name, bug in SEEDED_BUGS.items():
        source = (ROOT / "src" / "attnscope" / bug.file).read_text(encoding="utf-8")
        assert source.count(bug.right) == 1, f"{name}: {bug.right!r} does not occur once in {bug.file}"
        compile(source.replace(bug.right, bug.wrong), bug.file, "exec")
        assert [test for test in bug.tests if not (ROOT / test).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDED_BUGS)
def test_a_seeded_bug_is_caught(name: str, tmp_path: Path) -> None:
    bug = SEEDED_BUGS[name]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "src" / "attnscope" / bug.file
    path.write_text(path.read_text(encoding="utf-8").replace(bug.right, bug.wrong), encoding="utf-8")

    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow and not timed"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", *bug.tests]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout[-2000:]  # 1: a test failed; other codes say nothing about the bug
