"""What is known of every head after some shards, in a form that can be merged in any order.

In: what was gathered from single shards. Out: a `Partial` of all of them. Whole numbers, extremes and examples are the
same for every order; sums are rounded in the order of merging, so shards are merged in the order of their numbers.
Does not know: models, texts, files. Memory: two partials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from attnscope.errors import SettingError, ShapeError
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.tally.examples import Examples
from attnscope.survey.tally.moments import Moments

MAX_PROBLEMS = 1000
"""Problems that are kept word for word; of further ones it is known how many there are."""


@dataclass(frozen=True, eq=False)
class Partial:
    """Everything about some shards."""

    layers: tuple[str, ...]
    """The layer of each head, in the order of the rows of all arrays."""
    heads: tuple[int, ...]
    moments: Moments
    examples: Examples
    tokens: int
    passages: int
    documents: int
    problems: Problems
    digests: Mapping[int, str]
    """What was read in each shard, by its number."""

    @staticmethod
    def empty(layers: Iterable[str] = (), heads: Iterable[int] = ()) -> Partial:
        """What is known of no shards: merged with another, it leaves that as it is."""
        layers, heads = tuple(layers), tuple(heads)
        moments, examples = Moments.zeros(len(layers)), Examples.empty(len(layers))
        return Partial(layers, heads, moments, examples, 0, 0, 0, Problems((), 0), {})


@dataclass(frozen=True)
class Problems:
    """What was left out: the first of it, in the order of files and places, and how much there is."""

    first: tuple[Problem, ...]
    number: int

    @staticmethod
    def of(problems: Iterable[Problem]) -> Problems:
        """Those of a shard."""
        found = sorted(problems, key=_place)
        return Problems(tuple(found[:MAX_PROBLEMS]), len(found))

    def plus(self, other: Problems) -> Problems:
        """Those of both."""
        first = sorted(self.first + other.first, key=_place)[:MAX_PROBLEMS]
        return Problems(tuple(first), self.number + other.number)


def merge(one: Partial, other: Partial) -> Partial:
    """What is known of the shards of both; none may be in both."""
    if twice := one.digests.keys() & other.digests.keys():
        raise SettingError(f"merge: shard {min(twice)} is in both, and would be counted twice; merge each part once")
    if not one.layers or not other.layers:  # without a passage, no head is known
        known = one if one.layers else other
        layers, heads, moments, examples = known.layers, known.heads, known.moments, known.examples
    elif (one.layers, one.heads) == (other.layers, other.heads):
        layers, heads, moments = one.layers, one.heads, one.moments.plus(other.moments)
        examples = one.examples.plus(other.examples)
    else:
        raise ShapeError(
            f"merge: {len(one.heads):,} heads of {_shown(one)} and {len(other.heads):,} heads of {_shown(other)} are "
            "not those of one model; merge the parts of one survey"
        )
    return Partial(
        layers,
        heads,
        moments,
        examples,
        one.tokens + other.tokens,
        one.passages + other.passages,
        one.documents + other.documents,
        one.problems.plus(other.problems),
        dict(sorted({**one.digests, **other.digests}.items())),
    )


def merge_all(partials: Iterable[Partial]) -> Partial:
    """What is known of the shards of all, merged one after the other in the order in which they are given."""
    return reduce(merge, partials, Partial.empty())


def _shown(partial: Partial) -> str:
    return f"{partial.layers[0]} to {partial.layers[-1]}"


def _place(problem: Problem) -> tuple[str, int, Problem]:
    """For sorting: byte 900 comes before byte 1,000."""
    number = re.search(r"\d[\d,]*", problem.place)
    return problem.file, int(number[0].replace(",", "")) if number else -1, problem
