"""Lists labs and exercises from their source files, without importing them and torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attnscope.labs.catalogue import SECONDS
from attnscope.labs.claims import CLAIMS
from attnscope.labs.exercises import EFFORT

FOLDER = Path(__file__).parent
DECIDE = re.compile(r"\.decide\(\s*(?:(['\"])(?P<claim>\w+)\1)?")


class LabInfo(NamedTuple):
    """A lab: its name, title, claims and approximate duration."""

    name: str
    title: str
    claims: tuple[str, ...]
    seconds: int


def experiments() -> Iterator[LabInfo]:
    """Yield all labs in teaching order."""
    for name, seconds in SECONDS.items():
        source = (FOLDER / "experiments" / f"{name}.py").read_text(encoding="utf-8")
        yield LabInfo(name, title_of(source), claims_in(source), seconds)


def exercises() -> Iterator[tuple[str, str, str, int]]:
    """Yield the names and titles of all exercises, their difficulty and minutes."""
    for name, effort in EFFORT.items():
        source = (FOLDER / "exercises" / f"{name}.py").read_text(encoding="utf-8")
        yield name, title_of(source).rstrip("."), effort.difficulty, effort.minutes


def claims_in(source: str) -> tuple[str, ...]:
    """Return the claims that a source file decides; each is the literal first argument of a call of `decide`.

    >>> claims_in("lab.decide('1a', verdict, because)")
    ('1a',)
    """
    found = {call["claim"] for call in DECIDE.finditer(source)}
    if not found <= CLAIMS.keys():
        raise ValueError("expected the number of a claim as a literal string in the first argument of decide")
    return tuple(claim for claim in CLAIMS if claim in found)


def title_of(source: str) -> str:
    """Return the first line of the docstring of a module."""
    return source.partition("\n")[0].strip('"')
