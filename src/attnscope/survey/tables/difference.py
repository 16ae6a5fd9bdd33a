"""`compare`: what changed between two surveys, a model on two corpora or two checkpoints on one, and how sure that is.

In: two surveys of the same heads. Out: for each head and statistic the change of the mean with an interval; all
intervals together hold with 95 %. Errors are over passages, which are taken to be independent of each other. Passages
of one document are not: where documents have many passages, intervals are too narrow.
Does not know: how surveys are made. Memory: some numbers a head and statistic.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple, TextIO

import numpy as np

from attnscope.errors import SettingError
from attnscope.heads.table import HeadTable
from attnscope.survey.tables.opening import Survey, is_share

CONFIDENCE = 0.95
FEWEST = 20
"""Passages on either side, below which nothing is said: errors from fewer are themselves too uncertain."""
ROUNDING = 1e-6  # of a mean: scores are float32, so that another machine gives slightly other ones


class Samples(NamedTuple):
    """Means of some comparisons, their standard errors over passages, and how many passages they come from."""

    mean: np.ndarray
    error: np.ndarray
    passages: np.ndarray


class Changes(NamedTuple):
    """Changes of means and the ends of their intervals; NaN where too little is known."""

    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    changed: np.ndarray
    """Whether 0 lies outside of the interval."""


class Row(NamedTuple):
    """One statistic of one head, before and after."""

    layer: str
    head: int
    statistic: str
    before: float
    after: float
    change: float
    low: float
    high: float
    size: float
    changed: bool
    labels_before: tuple[str, ...]
    labels_after: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Difference:
    """The changes of all statistics (heads, statistics) from one survey to another."""

    before: HeadTable
    after: HeadTable
    statistics: tuple[str, ...]
    changes: Changes
    caution: str | None
    """What keeps the changes from being put down to one cause, in words."""

    @property
    def num_comparisons(self) -> int:
        """How many intervals hold together."""
        return int(np.isfinite(self.changes.low).sum())

    @property
    def num_unknown(self) -> int:
        """How many comparisons have too few passages."""
        return self.changes.low.size - self.num_comparisons

    @cached_property
    def sizes(self) -> np.ndarray:
        """Effect sizes (heads, statistics), as `size_of` computes them."""
        pairs = [(self.before[name].numpy(), self.after[name].numpy()) for name in self.statistics]
        return np.stack([size_of(name, *pair) for name, pair in zip(self.statistics, pairs, strict=True)], 1)

    @property
    def changed_heads(self) -> HeadTable:
        """The heads of which some statistic changed, as they were before."""
        return self.before.rows(np.flatnonzero(self.changes.changed.any(1)).tolist())

    def relabelled(self) -> Counter[tuple[str, str]]:
        """How many of the changed heads went from one first label to another."""
        changed_heads = np.atleast_1d(self.changes.changed.any(axis=1))
        pairs = zip(self.before.labels or (), self.after.labels or (), changed_heads, strict=True)
        return Counter((old[0], new[0]) for old, new, changed in pairs if changed and old[0] != new[0])

    def rows(self, statistic: str | None = None, *, all_of_them: bool = False) -> Iterator[Row]:
        """What changed, the largest change first; of one statistic, or of all, and also what did not if told."""
        if statistic is not None and statistic not in self.statistics:
            raise SettingError(
                f"{statistic!r} is in none or one of both surveys; both have {', '.join(self.statistics)}"
            )
        wanted = np.array([statistic in (None, name) for name in self.statistics])
        shown = (self.changes.changed | all_of_them) & wanted
        sizes = np.where(shown, np.abs(np.nan_to_num(self.sizes)), -1.0).ravel()
        for place in np.argsort(-sizes, kind="stable")[: int(shown.sum())].tolist():
            yield self._row(*divmod(place, len(self.statistics)))

    def _row(self, head: int, column: int) -> Row:
        name = self.statistics[column]
        change, low, high = (float(numbers[head, column]) for numbers in self.changes[:3])
        return Row(
            self.before.layers[head],
            self.before.heads[head],
            name,
            float(self.before[name][head]),
            float(self.after[name][head]),
            change,
            low,
            high,
            float(self.sizes[head, column]),
            bool(self.changes.changed[head, column]),
            (self.before.labels or ())[head],
            (self.after.labels or ())[head],
        )

    def to_csv(self, file: TextIO, statistic: str | None = None) -> None:
        """Write all comparisons as CSV, the largest change first, with a first row of names."""
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in self.rows(statistic, all_of_them=True):
            writer.writerow([*row[:-2], *map("+".join, row[-2:])])


def compare(before: Survey, after: Survey) -> Difference:
    """The change of every statistic of every head from one survey to another.

    All intervals together hold with 95 % (Šidák over all comparisons, whatever their correlations). Both surveys are
    taken to be independent samples: of two checkpoints on one corpus the passages are the same, which makes the true
    error of a change smaller than stated. Passages of one document are not independent, which makes it larger.
    """
    old, new = before.heads, after.heads
    _refuse_other_heads(old, new)
    statistics = tuple(name for name in before.statistics if name in after.statistics)
    if not statistics:
        raise SettingError("compare: these surveys have no statistic in common")
    changes = changes_between(_samples(before, statistics), _samples(after, statistics))
    return Difference(old, new, statistics, changes, _caution(before, after))


def changes_between(before: Samples, after: Samples) -> Changes:
    """Changes of means, with intervals that hold together; of any shape, each number a comparison.

    A small sample of something rare may by chance have seen none of it, and with it no spread between passages. So the
    spread counts that is the larger of both samples, and not each one's own: beside a sample ten times as large, own
    errors find changes where there are none.

    >>> one = Samples(np.array([0.2]), np.array([0.01]), np.array([100]))
    >>> changes_between(one, one._replace(mean=np.array([0.3]))).changed
    array([ True])
    """
    change = after.mean - before.mean
    largest = np.maximum(np.abs(before.mean), np.abs(after.mean))
    passages = np.minimum(before.passages, after.passages)
    known = np.isfinite(change) & np.isfinite(before.error + after.error) & (passages >= FEWEST)
    variance = np.maximum(before.error**2 * before.passages, after.error**2 * after.passages)
    of_a_mean = [np.divide(variance, some.passages, where=known, out=np.zeros_like(change)) for some in (before, after)]
    error = np.maximum(np.sqrt(of_a_mean[0] + of_a_mean[1]), ROUNDING * largest)
    tail = -np.expm1(np.log(CONFIDENCE) / max(int(known.sum()), 1)) / 2
    # The true number of degrees of freedom lies between that of the smaller sample and that of both.
    reach = student_quantile(float(tail), np.where(known, passages - 1, FEWEST - 1)) * error
    low, high = (np.where(known, change + sign * reach, np.nan) for sign in (-1, 1))
    return Changes(change, low, high, known & ((low > 0) | (high < 0)))


def student_quantile(tail: float, degrees: np.ndarray) -> np.ndarray:
    """What a number of Student's distribution exceeds with the probability `tail`, for 19 degrees of freedom or more.

    The expansion around the normal quantile in Abramowitz and Stegun, 26.7.5.

    >>> student_quantile(0.001, np.array([30.0])).round(3)
    array([3.385])
    """
    z, v = -NormalDist().inv_cdf(tail), np.asarray(degrees, dtype=np.float64)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / v + second / v**2 + third / v**3 + fourth / v**4


def size_of(statistic: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """A change as a number from -1 to 1 that is comparable between statistics.

    Shares of attention: the change itself. Reach and effective keys: the change as a share of the larger of both (and
    of 1 token or key at least), so that 0.5 is twice as many and -0.5 half. Entropy is the logarithm of a number of
    keys: the change of that number, likewise.

    >>> float(size_of("reach", np.array(10.0), np.array(20.0))), float(size_of("sink", np.array(0.5), np.array(0.75)))
    (0.5, 0.25)
    """
    change = after - before
    if is_share(statistic):
        return change
    if statistic == "entropy":
        return -np.sign(change) * np.expm1(-np.abs(change))
    return change / np.maximum(np.maximum(before, after), 1.0)


def _samples(survey: Survey, statistics: tuple[str, ...]) -> Samples:
    tables = (survey.table(number) for number in ("mean", "standard_error", "passages"))
    return Samples(*(np.stack([table[name].numpy() for name in statistics], 1) for table in tables))


def _refuse_other_heads(old: HeadTable, new: HeadTable) -> None:
    one, other = (list(zip(table.layers, table.heads, strict=True)) for table in (old, new))
    if one == other:
        return
    alone = next((head for head in [*one, *other] if (head in one) != (head in other)), None)
    which = "in another order" if alone is None else f"head {alone[1]} of {alone[0]} is in one of them only"
    raise SettingError(
        f"compare: these surveys are of other heads ({len(one)} and {len(other)}; {which}); compare one model on two "
        "corpora, or two checkpoints of one model"
    )


def _caution(before: Survey, after: Survey) -> str | None:
    """What differs beside the one thing that should, and documents that are too few to stand for a corpus."""
    model, corpus = (before.manifest[part]["hash"] != after.manifest[part]["hash"] for part in ("model", "corpus"))
    windows = [survey.manifest["settings"]["window"] for survey in (before, after)]
    found = []
    if model and corpus:
        found.append("both the model and the corpus differ, so that a change may come from either")
    if windows[0] != windows[1]:
        cut = " and ".join("nowhere" if window is None else f"at {window:,} tokens" for window in windows)
        found.append(f"passages were cut {cut}, which alone changes entropy, reach and others")
    fewest = min(survey.manifest["corpus"]["documents"] for survey in (before, after))
    if fewest < FEWEST:
        found.append(
            f"one of them has {fewest} document{'s' * (fewest != 1)} only, and intervals hold for independent passages"
        )
    return "; ".join(found) or None
