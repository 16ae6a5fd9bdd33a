"""Converts labs to Jupyter notebooks.

Each part of a lab becomes a text cell with its docstring, and a code cell with the functions that it needs, the part
itself, and a call that shows its findings.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from attnscope.errors import SettingError
from attnscope.labs.catalogue import heading, introduction, load_experiment, title


class Section(NamedTuple):
    """A section of a lab: the name of its part, its text and its code."""

    part: str
    """Empty for the code before the first function."""
    text: str
    code: str


def notebook(name: str) -> dict[str, Any]:
    """Convert a lab to a notebook in version 4 of the Jupyter format.

    >>> cells = notebook("scaling")["cells"]
    >>> cells[0]["source"].splitlines()[0]
    '# Attention scaling'
    """
    module = load_experiment(name)
    first, *parts = sections(inspect.getsource(module))
    cells = [
        _cell("markdown", f"# {title(module)}\n\n{introduction(module)}"),
        _cell("code", f'{first.code}\n\nlab = Lab("{name}", {json.dumps(title(module))})'),
    ]
    for part in parts:
        cells.append(_cell("markdown", f"## {heading(part.part)}\n\n{part.text}"))
        cells.append(_cell("code", f"{part.code}\n\n\n{part.part}(lab)\nlab.new_findings()"))
    for number, cell in enumerate(cells):
        cell["id"] = f"{name}-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def sections(source: str) -> Iterator[Section]:
    """Yield the code before the first function, then each part with the code since the part before it."""
    tree, lines = ast.parse(source), source.splitlines()
    names = _names_of_parts(tree)
    begin = _last_line(tree.body[0])
    first = next(node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    end = max(_last_line(node) for node in tree.body if node.lineno < first.lineno)
    yield Section("", "", _code(lines[begin:end]))
    begin = end
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            docstring = node.body[0]  # shown in the text cell
            code = lines[begin : docstring.lineno - 1] + lines[_last_line(docstring) : _last_line(node)]
            yield Section(node.name, ast.get_docstring(node) or "", _code(code))
            begin = _last_line(node)


def _names_of_parts(tree: ast.Module) -> list[str]:
    """Return the names in `PARTS`."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "PARTS"
            and isinstance(node.value, ast.Tuple)
        ):
            return [ast.unparse(name) for name in node.value.elts]
    raise SettingError("notebook: the experiment has no PARTS = (...)")


def _last_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _code(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n")


def _cell(kind: str, source: str) -> dict[str, Any]:
    own = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **own}
