"""Every promise in the tables of docs/security.md and docs/reliability.md names tests, and all of them exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for name in ("security", "reliability") if (path := ROOT / "docs" / f"{name}.md").exists()]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows_of_promises(markdown: str) -> list[str]:
    """The rows of tables whose last column is headed "test"."""
    rows, inside = [], False
    for line in markdown.splitlines():
        if re.fullmatch(r"\|.*\|\s*tests?\s*\|", line):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not re.fullmatch(r"[|\s:-]+", line):
            rows.append(line)
    return rows


@cache
def named_in(path: Path) -> frozenset[str]:
    """The names of the test functions of a file, also inside classes."""
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def is_marked_slow(path: Path, name: str) -> bool:
    """Whether a test function, and not only some of its parameters, is marked as slow."""
    body = ast.parse(path.read_text()).body
    found = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    whole = (
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    )
    marks = " ".join(map(ast.unparse, (*whole, *found.decorator_list)))
    return re.search(r"pytest\.mark\.slow\b", marks) is not None and "marks=" not in marks


def missing_tests(markdown: str, root: Path) -> list[str]:
    """The tests that a page names and that are not there."""
    return [f"{file}::{name}" for file, name in TEST.findall(markdown) if name not in named_in(root / file)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_test_exists(page: Path) -> None:
    assert missing_tests(page.read_text(), ROOT) == []


def test_promises_that_rest_on_slow_tests_say_so() -> None:
    for row in rows_of_promises((ROOT / "docs" / "reliability.md").read_text()):
        is_slow = all(is_marked_slow(ROOT / file, name) for file, name in TEST.findall(row))
        assert is_slow == ("(slow)" in row), row


@pytest.mark.parametrize(("page", "promises"), [("security.md", 25), ("reliability.md", 20)])
def test_every_promise_of_a_page_has_a_test(page: str, promises: int) -> None:
    rows = rows_of_promises((ROOT / "docs" / page).read_text())
    assert len(rows) > promises
    assert [row for row in rows if not TEST.search(row.split("|")[-2])] == []


def test_a_promise_without_a_test_and_a_test_that_is_gone_are_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "def test_there(): ...\nclass T:\n    async def test_inside(self): ...\n"
    )
    page = "| threat | test |\n|---|---|\n| a | `tests/test_a.py::test_there`, `tests/test_a.py::test_inside` |\n"
    page += "| b | `tests/test_a.py::test_gone` |\n| c | nothing |\n\n| other | table |\n|---|---|\n| d | e |\n"
    assert len(rows_of_promises(page)) == 3
    assert [row for row in rows_of_promises(page) if not TEST.search(row)] == ["| c | nothing |"]
    assert missing_tests(page, tmp_path) == ["tests/test_a.py::test_gone"]
    assert missing_tests("`tests/test_b.py::test_x`", tmp_path) == ["tests/test_b.py::test_x"]
