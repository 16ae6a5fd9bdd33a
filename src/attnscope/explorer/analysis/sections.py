r"""Headings, speakers, paragraphs and lines of a text, as axis labels.

In: token texts. Out: (position, importance, name) at the first token of each. Does not know: models.
Memory: the text, and at most 4,000 names.

>>> sections(["# A", " play", "\n", "\n", "ROMEO", ":", "\n", "It", " is", " so", ".", "\n"])
[(0, 1.0, '# A play'), (4, 0.7, 'ROMEO:'), (7, 0.2, 'It is so.')]
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

MAX_SECTIONS, MAX_NAME_LENGTH = 4000, 60
HEADING = re.compile(r"(#{1,6})\s+\S")
WIKI_HEADING = re.compile(r"(={1,6})\s\S.*\s\1")
SPEAKER = re.compile(r"[A-Z][\w.'-]*( [\w.'-]+){0,3}:(\s|$)")
TURN, PARAGRAPH, LINE = 0.7, 0.5, 0.2

Section = tuple[int, float, str]
"""A position, an importance from 0 to 1, and a name."""


def sections(texts: Sequence[str]) -> list[Section]:
    """Find the sections of a text, in order; of more than 4,000, the most important, evenly spaced."""
    found: dict[int, tuple[float, str]] = {}
    starts = [0, *accumulate(map(len, texts))]
    place, after_blank = 0, True
    for line in "".join(texts).splitlines(keepends=True):
        name = line.strip()
        if name:
            position = bisect_right(starts, place + len(line) - len(line.lstrip())) - 1
            importance = rate_importance(name, after_blank=after_blank)
            if importance > found.get(position, (0.0, ""))[0]:
                found[position] = importance, " ".join(name[: 4 * MAX_NAME_LENGTH].split())[:MAX_NAME_LENGTH]
        place, after_blank = place + len(line), not name
    kept = _most_important({position: importance for position, (importance, _) in found.items()})
    return [(position, *found[position]) for position in kept]


def rate_importance(line: str, *, after_blank: bool) -> float:
    """Rate the importance of a line.

    >>> rate_importance("## Methods", after_blank=True), rate_importance("= History =", after_blank=True)
    (0.9, 1.0)
    >>> rate_importance("It rained.", after_blank=False)
    0.2
    """
    heading = HEADING.match(line) or WIKI_HEADING.fullmatch(line)
    if heading:
        return round(1.1 - 0.1 * min(len(heading[1]), 4), 1)
    if SPEAKER.match(line):
        return TURN
    return PARAGRAPH if after_blank else LINE


def _most_important(importance: dict[int, float]) -> list[int]:
    """Select the most important positions, in order."""
    kept: list[int] = []
    for level in sorted(set(importance.values()), reverse=True):
        alike = sorted(position for position, value in importance.items() if value == level)
        room = min(MAX_SECTIONS - len(kept), len(alike))
        kept += [alike[at * len(alike) // room] for at in range(room)]
    return sorted(kept)
