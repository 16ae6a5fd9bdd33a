"""All experiments and exercises, read from their files without importing them, and so without torch.

In: nothing. Out: a line for each. Does not know: results. Memory: one file at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attnscope.labs.catalogue import SECONDS
from attnscope.labs.claims import CLAIMS
from attnscope.labs.exercises import NAMES as EXERCISES

FOLDER = Path(__file__).parent
DECIDE = re.compile(r"\.decide\(\s*(?:(['\"])(?P<claim>\w+)\1)?")


class Listed(NamedTuple):
    """An experiment: its name, what it asks, which claims it decides, and about how long it takes."""

    name: str
    question: str
    claims: tuple[str, ...]
    seconds: int


def experiments() -> Iterator[Listed]:
    """All experiments in the order in which they teach."""
    for name, seconds in SECONDS.items():
        source = (FOLDER / "experiments" / f"{name}.py").read_text(encoding="utf-8")
        yield Listed(name, title_of(source), claims_in(source), seconds)


def exercises() -> Iterator[tuple[str, str]]:
    """The names of all exercises and what they ask."""
    for name in EXERCISES:
        source = (FOLDER / "exercises" / f"{name}.py").read_text(encoding="utf-8")
        yield name, title_of(source).rstrip(".")


def claims_in(source: str) -> tuple[str, ...]:
    """The claims that an experiment decides: each is the literal first argument of a call of `decide`.

    >>> claims_in("lab.decide('1a', verdict, because)")
    ('1a',)
    """
    found = {call["claim"] for call in DECIDE.finditer(source)}
    if not found <= CLAIMS.keys():
        raise ValueError("the first argument of decide has to be the number of a claim, as a literal string")
    return tuple(claim for claim in CLAIMS if claim in found)


def title_of(source: str) -> str:
    """The first line of the docstring of a module."""
    return source.partition("\n")[0].strip('"')
