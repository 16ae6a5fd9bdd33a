"""Pages that promise something name tests, and these tests exist."""

import re
from pathlib import Path

import pytest

from tests.project.checkout import ROOT

PAGES = ("docs/reliability.md", "docs/security.md")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def missing_tests(text: str, root: Path) -> list[str]:
    """Tests that a page names and that do not exist."""
    missing = []
    for file, name in TEST.findall(text):
        path = root / file
        if not path.is_file() or (name and f"\ndef {name}(" not in path.read_text(encoding="utf-8")):
            missing.append(f"{file}::{name}")
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_named_tests_exist(page: str) -> None:
    assert missing_tests((ROOT / page).read_text(encoding="utf-8"), ROOT) == []


def test_reliability_names_a_test_for_every_promise() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = text.split("## What is promised")[1].split("\n## ")[0].split("|---|---|---|\n")[1].strip().splitlines()
    assert len(rows) >= 5
    assert [row for row in rows if not TEST.search(row)] == []


def test_a_test_that_does_not_exist_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("\ndef test_b() -> None: ...\n")
    text = "`tests/test_a.py` `tests/test_a.py::test_b` `tests/test_a.py::test_c` `tests/test_d.py::test_b`"
    assert missing_tests(text, tmp_path) == ["tests/test_a.py::test_c", "tests/test_d.py::test_b"]
