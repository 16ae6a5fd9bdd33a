"""What there is to run: experiments and exercises, read off their files without running anything.

In: nothing. Out: a line for each. Does not know: results. Memory: one file at a time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attnscope.labs.catalogue import SECONDS
from attnscope.labs.claims import CLAIMS
from attnscope.labs.exercises import NAMES as EXERCISES

FOLDER = Path(__file__).parent


class Listed(NamedTuple):
    """An experiment: its name, what it asks, which claims it decides, and about how long it takes."""

    name: str
    question: str
    claims: tuple[str, ...]
    seconds: int


def experiments() -> Iterator[Listed]:
    """All experiments in the order in which they teach."""
    for name, seconds in SECONDS.items():
        tree = _tree(FOLDER / "experiments" / f"{name}.py")
        yield Listed(name, _title(tree), claims_in(tree), seconds)


def exercises() -> Iterator[tuple[str, str]]:
    """The names of all exercises and what they ask."""
    for name in EXERCISES:
        yield name, _title(_tree(FOLDER / "exercises" / f"{name}.py")).rstrip(".")


def claims_in(tree: ast.Module) -> tuple[str, ...]:
    """The claims that an experiment decides: they stand in it as they are called.

    >>> claims_in(ast.parse("lab.decide('1a', verdict, because)"))
    ('1a',)
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decide":
            found.add(ast.literal_eval(node.args[0]))
    return tuple(claim for claim in CLAIMS if claim in found)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _title(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]
