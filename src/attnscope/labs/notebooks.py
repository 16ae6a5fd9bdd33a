"""`notebook`: an experiment as a Jupyter notebook, made from its file, so that nobody ever edits one.

In: the name of an experiment. Out: the notebook as JSON. A part of the experiment becomes a cell of text, its
docstring, and a cell of code: what stands before the part in the file, the part itself, a call, and what came of it.
Does not know: what experiments do. Memory: the file twice.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from attnscope.errors import SettingError
from attnscope.labs.catalogue import experiment, heading, introduction, question


class Section(NamedTuple):
    """A stretch of an experiment: the part that it ends with, what it says, and its code."""

    part: str
    """Empty for what stands before the first part."""
    prose: str
    code: str


def notebook(name: str) -> dict[str, Any]:
    """An experiment as a notebook in version 4 of Jupyter's format.

    >>> cells = notebook("scaling")["cells"]
    >>> cells[0]["source"].splitlines()[0]
    '# Why are scores divided by the root of their dimension?'
    """
    module = experiment(name)
    first, *parts = sections(inspect.getsource(module))
    cells = [
        _cell("markdown", f"# {question(module)}\n\n{introduction(module)}"),
        _cell("code", f'{first.code}\n\nlab = Lab("{name}", {json.dumps(question(module))})'),
    ]
    for part in parts:
        cells.append(_cell("markdown", f"## {heading(part.part)}\n\n{part.prose}"))
        cells.append(_cell("code", f"{part.code}\n\n\n{part.part}(lab)\nlab.news()"))
    for number, cell in enumerate(cells):
        cell["id"] = f"{name}-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def sections(source: str) -> Iterator[Section]:
    """What stands before the first function, then the parts, each with all that the file has since the one before."""
    tree, lines = ast.parse(source), source.splitlines()
    names = _names_of_parts(tree)
    begin = _last_line(tree.body[0])
    first = next(node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    end = max(_last_line(node) for node in tree.body if node.lineno < first.lineno)
    yield Section("", "", _code(lines[begin:end]))
    begin = end
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            words = node.body[0]  # its docstring, which stands above the code
            code = lines[begin : words.lineno - 1] + lines[_last_line(words) : _last_line(node)]
            yield Section(node.name, ast.get_docstring(node) or "", _code(code))
            begin = _last_line(node)


def _names_of_parts(tree: ast.Module) -> list[str]:
    """What `PARTS` lists."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "PARTS"
            and isinstance(node.value, ast.Tuple)
        ):
            return [ast.unparse(name) for name in node.value.elts]
    raise SettingError("notebook: the experiment has no PARTS = (...), so that it cannot be divided")


def _last_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _code(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n")


def _cell(kind: str, source: str) -> dict[str, Any]:
    own = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **own}
