"""Files, functions and constructors stay small; docstrings do not count."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 59
MAX_CONSTRUCTOR_PARAMETERS = 9


def budget_faults(source: Path) -> list[str]:
    """Whatever is too long under a folder, with its size."""
    faults = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(source)
        nodes = list(ast.walk(ast.parse(text, str(path))))
        if (lines := len(text.splitlines()) - sum(map(docstring_lines, nodes))) > MAX_FILE_LINES:
            faults.append(f"{name}: {lines} lines, at most {MAX_FILE_LINES}")
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                faults += [f"{name}:{node.lineno}: {fault}" for fault in function_faults(node)]
    return faults


def docstring_lines(node: ast.AST) -> int:
    """The lines of the docstring of a module, class or function; 0 without one."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    if ast.get_docstring(node, clean=False) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or first.lineno) - first.lineno + 1


def function_faults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    faults = []
    lines = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
    if lines > MAX_FUNCTION_LINES:
        faults.append(f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}")
    if node.name == "__init__":
        arguments = node.args
        named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
        count = named + (arguments.vararg is not None) + (arguments.kwarg is not None)
        if count > MAX_CONSTRUCTOR_PARAMETERS:
            faults.append(f"__init__ has {count} parameters, at most {MAX_CONSTRUCTOR_PARAMETERS}")
    return faults


@pytest.mark.parametrize("folder", ["src", "benchmarks"])
def test_the_source_keeps_its_budget(folder: str) -> None:
    assert budget_faults(ROOT / folder) == []


def test_the_last_allowed_size_passes(tmp_path: Path) -> None:
    body = "    x = 1\n" * (MAX_FUNCTION_LINES - 1)
    parameters = ", ".join(f"p{i}" for i in range(MAX_CONSTRUCTOR_PARAMETERS))
    (tmp_path / "function.py").write_text(f'def long():\n    """One\n    two."""\n{body}')
    (tmp_path / "constructor.py").write_text(f"class C:\n    def __init__(self, {parameters}): ...\n")
    (tmp_path / "file.py").write_text("x = 1\n" * MAX_FILE_LINES)
    assert budget_faults(tmp_path) == []


def test_one_more_is_found(tmp_path: Path) -> None:
    body = "        x = 1\n" * MAX_FUNCTION_LINES
    parameters = ", ".join(f"p{i}" for i in range(MAX_CONSTRUCTOR_PARAMETERS))
    (tmp_path / "function.py").write_text(f"class C:\n    async def long():\n{body}")
    (tmp_path / "constructor.py").write_text(f"class C:\n    def __init__(self, {parameters}, *, last): ...\n")
    (tmp_path / "file.py").write_text("x = 1\n" * (MAX_FILE_LINES + 1))
    assert budget_faults(tmp_path) == [
        "constructor.py:2: __init__ has 10 parameters, at most 9",
        "file.py: 501 lines, at most 500",
        "function.py:2: long has 60 lines, at most 59",
    ]
