"""The partial result of some shards, which can be merged in any order.

In: partial results of single shards. Out: a `PartialResult` of all of them. Integers, extremes and examples do not
depend on the order; floating-point sums do by rounding, so shards are merged in the order of their numbers.
Does not know: models, texts, files. Memory: two partial results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from attnscope.errors import SettingError, ShapeError
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.examples import Examples
from attnscope.survey.partials.moments import Moments

MAX_PROBLEMS = 1000
"""Problems that are listed; further ones are only counted."""


@dataclass(frozen=True, eq=False)
class PartialResult:
    """Statistics, examples, counts and problems of some shards."""

    layers: tuple[str, ...]
    """The layer name of each row of the arrays."""
    heads: tuple[int, ...]
    """The head of each row, counted within its layer."""
    moments: Moments
    examples: Examples
    tokens: int
    passages: int
    documents: int
    problems: Problems
    digests: Mapping[int, str]
    """A hash of the input of each shard, by shard number."""

    @staticmethod
    def empty(layers: Iterable[str] = (), heads: Iterable[int] = ()) -> PartialResult:
        """The neutral element of `merge`."""
        layers, heads = tuple(layers), tuple(heads)
        moments, examples = Moments.zeros(len(layers)), Examples.empty(len(layers))
        return PartialResult(layers, heads, moments, examples, 0, 0, 0, Problems((), 0, 0), {})


@dataclass(frozen=True)
class Problems:
    """Skipped input: the first problems, sorted by file and location, and their total number and size."""

    first: tuple[Problem, ...]
    count: int
    skipped_bytes: int

    @staticmethod
    def of(problems: Iterable[Problem]) -> Problems:
        """Sort and count the problems of a shard."""
        found = sorted(problems, key=_sort_key)
        return Problems(tuple(found[:MAX_PROBLEMS]), len(found), sum(problem.skipped_bytes for problem in found))

    def merge(self, other: Problems) -> Problems:
        """The problems of both."""
        if not other.count:
            return self
        first = sorted(self.first + other.first, key=_sort_key)[:MAX_PROBLEMS]
        return Problems(tuple(first), self.count + other.count, self.skipped_bytes + other.skipped_bytes)


def merge(one: PartialResult, other: PartialResult) -> PartialResult:
    """Merge two partial results of the same model.

    Raises:
        SettingError: A shard is in both.
        ShapeError: They have different heads.
    """
    return merge_partials([one, other])


def merge_partials(partials: Iterable[PartialResult]) -> PartialResult:
    """Merge partial results one after the other, in the given order; the time for each does not grow with the others.

    Raises:
        SettingError: A shard is in two of them.
        ShapeError: They have different heads.
    """
    merged, digests = PartialResult.empty(), dict[int, str]()
    for partial in partials:
        if twice := digests.keys() & partial.digests.keys():
            raise SettingError(
                f"merge: shard {min(twice)} is in both and would be counted twice; merge each partial result once"
            )
        digests.update(partial.digests)
        merged = _merge_counts(merged, partial)
    return replace(merged, digests=dict(sorted(digests.items())))


def _merge_counts(one: PartialResult, other: PartialResult) -> PartialResult:
    """Merge everything but the digests, which are left out."""
    if not one.layers or not other.layers:  # without a passage, the heads are unknown
        known = one if one.layers else other
        layers, heads, moments, examples = known.layers, known.heads, known.moments, known.examples
    elif (one.layers, one.heads) == (other.layers, other.heads):
        layers, heads, moments = one.layers, one.heads, one.moments.merge(other.moments)
        examples = one.examples.merge(other.examples)
    else:
        raise ShapeError(
            f"merge: expected partial results of the same model, got {len(one.heads):,} heads of {_layer_range(one)} "
            f"and {len(other.heads):,} heads of {_layer_range(other)}"
        )
    return PartialResult(
        layers,
        heads,
        moments,
        examples,
        one.tokens + other.tokens,
        one.passages + other.passages,
        one.documents + other.documents,
        one.problems.merge(other.problems),
        {},
    )


def _layer_range(partial: PartialResult) -> str:
    return f"{partial.layers[0]} to {partial.layers[-1]}"


def _sort_key(problem: Problem) -> tuple[str, int, Problem]:
    """Sorts by file and by the number in the location: byte 900 comes before byte 1,000."""
    number = re.search(r"\d[\d,]*", problem.location)
    return problem.file, int(number[0].replace(",", "")) if number else -1, problem
