"""`open_survey`: a folder that a survey was written to becomes a table of heads, with what lies behind each number.

In: a folder with manifest.json and Parquet tables. Out: a `Survey`: means with labels as a `HeadTable`, and for one
head and statistic the distribution over queries and example passages.
Does not know: models, how the numbers came about. Memory: one number a head and statistic for each column that is asked
for; of histograms, examples and passages only the rows that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope.errors import CheckpointError, SettingError
from attnscope.extras import import_extra
from attnscope.heads.labels import assign_labels
from attnscope.heads.table import HeadTable
from attnscope.models.json_files import read_json
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, MANIFEST, PASSAGES, SURVEY, TABLES
from attnscope.survey.tables.manifest import FORMAT
from attnscope.survey.tally.statistics import STATISTICS

NUMBERS = ("count", "passages", "mean", "deviation", "standard_error")
QUANTILES = ("smallest", "p05", "p25", "p50", "p75", "p95", "largest")


BINS = ("low", "high", "count")
Place = tuple[str, int, str]
"""A layer, a head and a statistic."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """How many queries have a value from `low` up to `high`, for each bin that has any, in rising order."""

    low: np.ndarray
    high: np.ndarray
    count: np.ndarray

    def cells(self, edges: np.ndarray) -> np.ndarray:
        """The share of queries between each two edges; what lies beyond the first and last counts with their cells.

        Within a bin queries are taken to be spread evenly.

        >>> bins = Histogram(np.array([0.0, 0.5]), np.array([0.5, 1.0]), np.array([3, 1]))
        >>> bins.cells(np.array([0.0, 0.25, 0.5, 1.0]))
        array([0.375, 0.375, 0.25 ])
        """
        total = int(self.count.sum())
        if not total:
            return np.zeros(len(edges) - 1)
        places = np.stack([self.low, np.where(np.isfinite(self.high), self.high, self.low)], 1).ravel()
        below = np.stack([self.count.cumsum() - self.count, self.count.cumsum()], 1).ravel() / total
        return np.diff([0.0, *np.interp(edges[1:-1], places, below), 1.0])


@dataclass(frozen=True, eq=False)
class Distribution:
    """What the queries of one head have of one statistic."""

    statistic: str
    count: int
    passages: int
    mean: float
    deviation: float
    standard_error: float
    quantiles: dict[str, float]
    histogram: Histogram

    @property
    def split(self) -> float:
        """How far queries are split into all and nothing; see `split`."""
        return float(split(self.statistic, self.mean, self.deviation))


class Passage(NamedTuple):
    """A part of the corpus that can be shown, and read again by the model."""

    passage: int
    file: str
    start: int
    offset: int
    text: str
    ids: tuple[int, ...]
    ends: tuple[int, ...]
    """For each token the character of the text at which it ends."""


class Example(NamedTuple):
    """A passage that shows what a head does: one of those with the most, or one from a decile of a sample."""

    kind: str
    """`top` or `decile`."""
    decile: int | None
    score: float
    """The mean over the queries of the passage."""
    position: int | None
    """The token of the strongest query, where it is known: in passages of kind `top`."""
    passage: int
    file: str
    start: int
    offset: int
    text: str
    ids: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def strongest(self) -> tuple[int, int] | None:
        """Where in the text the token of the strongest query begins and ends."""
        if self.position is None:
            return None
        return (self.ends[self.position - 1] if self.position else 0), self.ends[self.position]


class _Index(NamedTuple):
    """What the rows of the table of heads are about."""

    layers: tuple[str, ...]
    heads: tuple[int, ...]
    statistics: tuple[str, ...]
    known: np.ndarray  # of all rows, whether there is any query
    places: tuple[np.ndarray, np.ndarray]  # head and statistic of the rows that are known


@dataclass(frozen=True, eq=False)
class Survey:
    """What every head of a model does over a corpus. Tables are read when they are asked for."""

    folder: Path
    manifest: dict[str, Any]

    @cached_property
    def heads(self) -> HeadTable:
        """The mean of every statistic over all queries of the corpus, with labels."""
        return assign_labels(self.table("mean"))

    def table(self, number: str) -> HeadTable:
        """One number of every statistic for all heads, such as `standard_error` or `p95`; NaN where there is none."""
        if number not in (*NUMBERS, *QUANTILES):
            raise SettingError(f"{number!r} is no number of a survey; there are {', '.join((*NUMBERS, *QUANTILES))}")
        layers, heads, statistics, known, places = self._index
        cells = np.full((len(heads), len(statistics)), np.nan)
        column = self._rows(HEADS, [number]).column(0)
        cells[places] = column.cast("float64").fill_null(float("nan")).to_numpy()[known]
        return HeadTable(layers, heads, dict(zip(statistics, torch.from_numpy(cells).unbind(1), strict=True)))

    @property
    def statistics(self) -> tuple[str, ...]:
        """The statistics that some query tells, in the order of `STATISTICS`."""
        return self._index.statistics

    def split(self) -> HeadTable:
        """How far the queries of each head are split into all and nothing; see `split`."""
        means, deviations = self.table("mean"), self.table("deviation")
        columns = {
            name: torch.from_numpy(split(name, means[name].numpy(), deviations[name].numpy()))
            for name in self.statistics
        }
        return HeadTable(means.layers, means.heads, columns)

    def distribution(self, layer: str, head: int, statistic: str) -> Distribution:
        """All there is about one statistic of one head."""
        self._check(layer, head, statistic)
        row = self._rows(HEADS, [*NUMBERS, *QUANTILES], _one(layer, head, statistic)).to_pylist()
        if not row or not row[0]["count"]:
            raise SettingError(f"no query of this corpus tells {statistic} of head {head} of {layer}")
        return Distribution(
            statistic,
            quantiles={name: row[0][name] for name in QUANTILES},
            histogram=self.histogram(layer, head, statistic),
            **{name: row[0][name] for name in NUMBERS},
        )

    def histogram(self, layer: str, head: int, statistic: str) -> Histogram:
        """How the queries of one head are distributed."""
        return self.histograms([(layer, head, statistic)])[0]

    def histograms(self, wanted: Sequence[Place]) -> list[Histogram]:
        """Several of them, in one reading."""
        for place in wanted:
            self._check(*place)
        names = ("layer", "head", "statistic")
        only = [(name, "in", sorted(set(some))) for name, some in zip(names, zip(*wanted, strict=True), strict=False)]
        found = self._rows(HISTOGRAMS, [*names, *BINS], only).sort_by("low")
        rows: dict[Place, list[int]] = {place: [] for place in wanted}
        for row, place in enumerate(zip(*(found[name].to_pylist() for name in names), strict=True)):
            if place in rows:
                rows[place].append(row)
        bins = [found[name].to_numpy() for name in BINS]
        return [Histogram(*(some[rows[place]] for some in bins)) for place in wanted]

    def examples(self, layer: str, head: int, statistic: str) -> list[Example]:
        """Passages that have most of a statistic, the first the most, and then one of each decile, from the lowest."""
        self._check(layer, head, statistic)
        wanted = ["kind", "decile", "score", "position", "passage"]
        rows = self._rows(EXAMPLES, wanted, _one(layer, head, statistic)).to_pylist()
        passages = self._passages({row["passage"] for row in rows})
        for row in rows:
            where = passages.get(row["passage"])
            if where is None or not 0 <= (row["position"] or 0) < len(where.ends):
                raise self._damaged(PASSAGES, f"it does not have token {row['position']} of passage {row['passage']}")
        rows.sort(key=lambda row: (row["decile"] or 0, -row["score"], row["passage"]))
        return [Example(**{**passages[row["passage"]]._asdict(), **row}) for row in rows]

    def passage(self, number: int) -> Passage | None:
        """The passage that examples call by this number, if it is kept."""
        return self._passages({number}).get(number)

    def _passages(self, numbers: set[int]) -> dict[int, Passage]:
        only = [("passage", "in", sorted(numbers))]
        found = self._rows(PASSAGES, Passage._fields, only).to_pylist() if numbers else []
        return {
            row["passage"]: Passage(**{**row, "ids": tuple(row["ids"]), "ends": tuple(row["ends"])}) for row in found
        }

    @cached_property
    def _index(self) -> _Index:
        rows = self._rows(HEADS, ["layer", "head", "statistic", "count"])
        layers, layer_numbers = _coded(rows["layer"])
        names, name_numbers = _coded(rows["statistic"])
        unknown = [name for name in names if name not in STATISTICS]
        if unknown:
            raise self._damaged(HEADS, f"{unknown[0]!r} is no statistic of this version of AttnScope")
        keys = layer_numbers * 2**32 + rows["head"].to_numpy()
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)  # heads as they come, and not by the names of their layers
        known = rows["count"].to_numpy() > 0
        told = {names[number] for number in np.unique(name_numbers[known])}
        statistics = tuple(score for score in STATISTICS if score in told)
        columns = {name: at for at, name in enumerate(statistics)}
        places = np.argsort(order)[which], np.array([columns.get(name, -1) for name in names])[name_numbers]
        if len(np.unique(keys * len(STATISTICS) + name_numbers)) < len(keys):
            raise self._damaged(HEADS, "a statistic of a head stands there twice")
        chosen = keys[first[order]].tolist()
        return _Index(
            tuple(layers[key >> 32] for key in chosen),
            tuple(key % 2**32 for key in chosen),
            statistics,
            known,
            (places[0][known], places[1][known]),
        )

    def _check(self, layer: str, head: int, statistic: str) -> None:
        """Refuse what this survey does not have."""
        self.heads[statistic]
        self.heads.head_scores(layer, head)

    def _rows(self, name: str, columns: Any, only: list[tuple[str, str, Any]] | None = None) -> Any:
        """Some columns of a table, of the rows that meet all conditions."""
        arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
        try:
            return parquet.read_table(self.folder / name, columns=list(columns), filters=only).select(list(columns))
        except (arrow.ArrowException, KeyError, OSError) as error:
            raise self._damaged(name, str(error)) from error

    def _damaged(self, name: str, fault: str) -> CheckpointError:
        return CheckpointError(
            f"{self.folder / name} is no table of a survey: {' '.join(fault.split())[:200]}; delete "
            f"{self.folder / MANIFEST} and run the survey again, which writes all tables from its parts"
        )


def open_survey(folder: str | Path) -> Survey:
    """Open what `attnscope survey run MODEL CORPUS... --out FOLDER` wrote, once it is finished.

    Standard errors are over passages: passages of one document are not independent of each other, so where documents
    have many passages the true error is larger.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder; give the folder of a survey: attnscope survey run")
    if not (folder / MANIFEST).exists():
        if (folder / SURVEY).exists():
            raise SettingError(f"the survey in {folder} is not finished; run the same command again, which resumes it")
        raise SettingError(f"{folder} is not a survey (no {MANIFEST}); attnscope survey run makes one")
    manifest = read_json(folder / MANIFEST)
    if "format" not in manifest or "corpus" not in manifest:
        raise SettingError(f"{folder / MANIFEST} is not that of a survey; give the folder of one")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"the survey in {folder} has format {str(manifest['format'])[:50]}, and this version of AttnScope reads "
            f"format {FORMAT}; update AttnScope, or make the survey again"
        )
    missing = [name for name in TABLES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder / missing[0]} is not there, though the survey is finished; copy the whole folder"
        )
    return Survey(folder, manifest)


def is_share(statistic: str) -> bool:
    """Whether a statistic lies between 0 and 1; others are nats, tokens and keys.

    >>> is_share("sink"), is_share("reach")
    (True, False)
    """
    return STATISTICS[statistic].ceiling == 1.0


def split(statistic: str, mean: Any, deviation: Any) -> Any:
    """The variance of queries as a share of the largest there is at their mean m, which is m (1 - m).

    0: all queries are like the mean. 1/3: spread evenly from 0 to 1. 1: each query has all or nothing, which the mean
    does not show. NaN for statistics that are no shares, and at a mean of 0 or 1, where there is nothing to split.

    >>> float(split("sink", 0.5, 0.5)), float(split("sink", 0.5, 0.0))
    (1.0, 0.0)
    """
    mean, deviation = np.asarray(mean, dtype=np.float64), np.asarray(deviation, dtype=np.float64)
    largest = mean * (1 - mean)
    if not is_share(statistic):
        return np.full_like(mean, np.nan)
    rounding = np.finfo(np.float32).eps  # a mean of float32 numbers that is 1 may be a little beside it
    return np.divide(deviation**2, largest, where=largest > rounding, out=np.full_like(mean, np.nan)).clip(max=1.0)


def _one(layer: str, head: int, statistic: str) -> list[tuple[str, str, Any]]:
    return [("layer", "==", layer), ("head", "==", head), ("statistic", "==", statistic)]


def _coded(column: Any) -> tuple[list[str], np.ndarray]:
    """The different texts of a column, and for each row which of them it has."""
    coded = column.combine_chunks().dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
