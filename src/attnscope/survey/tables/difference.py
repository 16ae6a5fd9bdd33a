"""`compare`: the differences between two surveys, of one model on two corpora or of two checkpoints on one corpus.

In: two surveys of the same heads. Out: for each head and statistic the change of the mean with a confidence interval;
the simultaneous confidence of all intervals is 95 %. Each passage is one sample. Passages of the same document are
correlated: if documents have many passages, intervals are too narrow, and with fewer than 20 documents there are none.
Does not know: how surveys are run. Memory: some values per head and statistic.
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
from attnscope.formatting import format_count
from attnscope.heads.table import HeadTable
from attnscope.survey.tables.survey import Survey, is_fraction

CONFIDENCE = 0.95
MIN_PASSAGES = MIN_DOCUMENTS = 20
"""With fewer passages or documents in either survey, there is no interval: its width would be too uncertain."""
ROUNDING = 1e-6  # relative error of a mean: scores are float32, and machines round differently


class Samples(NamedTuple):
    """Means, their standard errors over passages, and the numbers of passages, in arrays of the same shape."""

    mean: np.ndarray
    error: np.ndarray
    passages: np.ndarray


class Changes(NamedTuple):
    """Changes of means and the ends of their intervals; NaN where there are too few passages."""

    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    changed: np.ndarray
    """Whether the interval excludes 0."""


class DifferenceRow(NamedTuple):
    """One statistic of one head, before and after."""

    layer: str
    head: int
    statistic: str
    before: float
    after: float
    change: float
    low: float
    high: float
    effect_size: float
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
    warning: str | None
    """Why the changes may have several causes, or None."""
    inconclusive: str | None = None
    """Why there are no intervals, and so no conclusion; None if there are some."""

    @property
    def num_comparisons(self) -> int:
        """The number of intervals."""
        return int(np.isfinite(self.changes.low).sum())

    @property
    def num_unknown(self) -> int:
        """The number of comparisons with too few passages or documents for an interval."""
        return self.changes.low.size - self.num_comparisons

    @cached_property
    def effect_sizes(self) -> np.ndarray:
        """Effect sizes (heads, statistics); see `effect_size`."""
        pairs = [(self.before[name].numpy(), self.after[name].numpy()) for name in self.statistics]
        return np.stack([effect_size(name, *pair) for name, pair in zip(self.statistics, pairs, strict=True)], 1)

    @property
    def changed_heads(self) -> HeadTable:
        """The heads with any changed statistic, with the values before."""
        return self.before.rows(np.flatnonzero(self.changes.changed.any(1)).tolist())

    def label_changes(self) -> Counter[tuple[str, str]]:
        """The number of changed heads per pair of first labels (before, after) that differ."""
        changed_heads = np.atleast_1d(self.changes.changed.any(axis=1))
        pairs = zip(self.before.labels or (), self.after.labels or (), changed_heads, strict=True)
        return Counter((old[0], new[0]) for old, new, changed in pairs if changed and old[0] != new[0])

    def rows(self, statistic: str | None = None, *, include_unchanged: bool = False) -> Iterator[DifferenceRow]:
        """Yield the changes, the largest effect size first.

        Args:
            statistic: Only this statistic; None for all.
            include_unchanged: Also yield comparisons whose interval contains 0, or that have none.

        Raises:
            SettingError: The statistic is not in both surveys.
        """
        if statistic is not None and statistic not in self.statistics:
            raise SettingError(
                f"statistic {statistic!r} is not in both surveys; expected one of {', '.join(self.statistics)}"
            )
        wanted = np.array([statistic in (None, name) for name in self.statistics])
        shown = (self.changes.changed | include_unchanged) & wanted
        effect_sizes = np.where(shown, np.abs(np.nan_to_num(self.effect_sizes)), -1.0).ravel()
        for place in np.argsort(-effect_sizes, kind="stable")[: int(shown.sum())].tolist():
            yield self._row(*divmod(place, len(self.statistics)))

    def _row(self, head: int, column: int) -> DifferenceRow:
        name = self.statistics[column]
        change, low, high = (float(numbers[head, column]) for numbers in self.changes[:3])
        return DifferenceRow(
            self.before.layers[head],
            self.before.heads[head],
            name,
            float(self.before[name][head]),
            float(self.after[name][head]),
            change,
            low,
            high,
            float(self.effect_sizes[head, column]),
            bool(self.changes.changed[head, column]),
            (self.before.labels or ())[head],
            (self.after.labels or ())[head],
        )

    def to_csv(self, file: TextIO, statistic: str | None = None) -> None:
        """Write all comparisons as CSV with a header, the largest effect size first.

        Args:
            file: An open text file.
            statistic: The name of a statistic; all if None.
        """
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(DifferenceRow._fields)
        for row in self.rows(statistic, include_unchanged=True):
            writer.writerow([*row[:-2], *map("+".join, row[-2:])])


def compare(before: Survey, after: Survey) -> Difference:
    """Compare every statistic of every head between two surveys.

    The simultaneous confidence of all intervals is 95 % (Šidák correction over all comparisons). Both surveys are
    treated as independent samples. For two checkpoints on one corpus the passages are the same, so the true error of a
    change is smaller than stated. Passages of the same document are correlated, so it is larger. If either survey has
    fewer than `MIN_DOCUMENTS` documents, no change has an interval, and `inconclusive` says why.

    Args:
        before: A survey.
        after: Another survey of the same heads: on another corpus, or of another checkpoint.

    Returns:
        The changes, with confidence intervals.

    Raises:
        SettingError: The surveys have different heads, or no statistic in common.
    """
    old, new = before.heads, after.heads
    _check_same_heads(old, new)
    statistics = tuple(name for name in before.statistics if name in after.statistics)
    if not statistics:
        raise SettingError("compare: these surveys have no statistic in common")
    samples = [_samples(survey, statistics) for survey in (before, after)]
    inconclusive = _find_too_few(before, after)
    if inconclusive is not None:
        samples = [some._replace(passages=np.zeros_like(some.passages)) for some in samples]
    changes = compare_samples(*samples)
    if inconclusive is None and not np.isfinite(changes.low).any():
        inconclusive = f"no statistic of any head has values in {MIN_PASSAGES} passages of both surveys"
    return Difference(old, new, statistics, changes, _find_confounders(before, after), inconclusive)


def compare_samples(before: Samples, after: Samples) -> Changes:
    """Changes of means with simultaneous confidence intervals, for arrays of any shape.

    A small sample of rare events may by chance contain none, and then its variance is zero. So both samples use the
    larger of the two variances: with separate variances, a comparison with a sample ten times as large finds changes
    where there are none.

    >>> one = Samples(np.array([0.2]), np.array([0.01]), np.array([100]))
    >>> compare_samples(one, one._replace(mean=np.array([0.3]))).changed
    array([ True])
    """
    change = after.mean - before.mean
    largest = np.maximum(np.abs(before.mean), np.abs(after.mean))
    passages = np.minimum(before.passages, after.passages)
    known = np.isfinite(change) & np.isfinite(before.error + after.error) & (passages >= MIN_PASSAGES)
    variance = np.maximum(before.error**2 * before.passages, after.error**2 * after.passages)
    squared_errors = [
        np.divide(variance, some.passages, where=known, out=np.zeros_like(change)) for some in (before, after)
    ]
    error = np.maximum(np.sqrt(squared_errors[0] + squared_errors[1]), ROUNDING * largest)
    tail = -np.expm1(np.log(CONFIDENCE) / max(int(known.sum()), 1)) / 2
    # The true degrees of freedom lie between those of the smaller sample and of both.
    margin = student_quantile(float(tail), np.where(known, passages - 1, MIN_PASSAGES - 1)) * error
    low, high = (np.where(known, change + sign * margin, np.nan) for sign in (-1, 1))
    return Changes(change, low, high, known & ((low > 0) | (high < 0)))


def student_quantile(tail: float, degrees: np.ndarray) -> np.ndarray:
    """The quantile of Student's t distribution with upper tail probability `tail`, for 19 degrees of freedom or more.

    Uses the expansion around the normal quantile, Abramowitz and Stegun (1964), 26.7.5.

    >>> student_quantile(0.001, np.array([30.0])).round(3)
    array([3.385])
    """
    z, v = -NormalDist().inv_cdf(tail), np.asarray(degrees, dtype=np.float64)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / v + second / v**2 + third / v**3 + fourth / v**4


def effect_size(statistic: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """A change as a number from -1 to 1 that can be compared between statistics.

    Fractions of attention: the change itself. Reach and effective keys: the change divided by the larger of both values
    (at least 1), so 0.5 is twice as many and -0.5 half. Entropy is the logarithm of a number of keys: the change of
    that number, in the same way.

    >>> float(effect_size("reach", np.array(10.0), np.array(20.0)))
    0.5
    >>> float(effect_size("sink", np.array(0.5), np.array(0.75)))
    0.25
    """
    change = after - before
    if is_fraction(statistic):
        return change
    if statistic == "entropy":
        return -np.sign(change) * np.expm1(-np.abs(change))
    return change / np.maximum(np.maximum(before, after), 1.0)


def _samples(survey: Survey, statistics: tuple[str, ...]) -> Samples:
    tables = (survey.table(number) for number in ("mean", "standard_error", "passages"))
    return Samples(*(np.stack([table[name].numpy() for name in statistics], 1) for table in tables))


def _check_same_heads(old: HeadTable, new: HeadTable) -> None:
    one, other = (list(zip(table.layers, table.heads, strict=True)) for table in (old, new))
    if one == other:
        return
    alone = next((head for head in [*one, *other] if (head in one) != (head in other)), None)
    difference = "in another order" if alone is None else f"head {alone[1]} of {alone[0]} is in only one of them"
    raise SettingError(
        f"compare: the surveys have different heads ({len(one)} and {len(other)}; {difference}); compare one "
        "model on two corpora, or two checkpoints of one model"
    )


def _find_too_few(before: Survey, after: Survey) -> str | None:
    """Describe why there are too few documents for a conclusion, or return None."""
    fewest = min(survey.manifest["corpus"]["documents"] for survey in (before, after))
    if fewest >= MIN_DOCUMENTS:
        return None
    return (
        f"one survey has only {format_count(fewest, 'document')}, but passages of one document are correlated; "
        f"survey at least {MIN_DOCUMENTS} documents (--separator divides a text file into documents)"
    )


def _find_confounders(before: Survey, after: Survey) -> str | None:
    """Describe differences other than the one that is compared."""
    model, corpus = (before.manifest[part]["hash"] != after.manifest[part]["hash"] for part in ("model", "corpus"))
    lengths = [survey.manifest["settings"]["max_length"] for survey in (before, after)]
    found = []
    if model and corpus:
        found.append("both the model and the corpus differ, so a change may come from either")
    if lengths[0] != lengths[1]:
        shown = " and ".join("whole documents" if length is None else f"{length:,} tokens" for length in lengths)
        found.append(f"the passage lengths differ ({shown}), which alone changes entropy, reach and others")
    return "; ".join(found) or None
