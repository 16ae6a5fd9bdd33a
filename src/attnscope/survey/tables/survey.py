"""`open_survey`: read the tables of a finished survey.

In: a folder with manifest.json and Parquet tables. Out: a `Survey`: means with labels as a `HeadTable`, and for one
head and statistic the distribution over queries and example passages.
Does not know: models, how surveys are run. Memory: one value per head and statistic for each column that is read; only
the requested rows of histograms, examples and passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope.errors import SettingError
from attnscope.heads.labels import assign_labels
from attnscope.heads.table import HeadTable
from attnscope.stores.paths import AnyPath, StorePath, report_access, to_local_folder, to_path
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, MANIFEST, PASSAGES, SURVEY, TABLES
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.partials.examples import NUM_DECILES, NUM_TOP, SAMPLE_SIZE, sampling_priorities
from attnscope.survey.tables.manifest import read_manifest, table_files
from attnscope.survey.tables.table_reader import Filters, TableReader

SUMMARY_COLUMNS = ("count", "passages", "mean", "std", "standard_error")
QUANTILES = ("min", "p05", "p25", "p50", "p75", "p95", "max")
BINS = ("low", "high", "count")
MAX_NAME = 1000  # characters of the name of a layer
MAX_PASSAGE = 2**63  # the ids of passages are int64
HeadStatistic = tuple[str, int, str]
"""A layer, a head and a statistic."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """The number of queries with a value from `low` to `high`, for each bin that is not empty, in ascending order."""

    low: np.ndarray
    high: np.ndarray
    count: np.ndarray

    def rebin(self, edges: np.ndarray) -> np.ndarray:
        """The fraction of queries in other bins, assuming a uniform distribution within each bin.

        Args:
            edges: The edges of the new bins, ascending. Values beyond the first and last edge count in the outer bins.

        Returns:
            Fractions (edges - 1,) that sum to 1, or zeros if the histogram is empty.

        >>> bins = Histogram(np.array([0.0, 0.5]), np.array([0.5, 1.0]), np.array([3, 1]))
        >>> bins.rebin(np.array([0.0, 0.25, 0.5, 1.0]))
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
    """The distribution of one statistic of one head over all queries."""

    statistic: str
    count: int
    passages: int
    mean: float
    std: float
    standard_error: float
    quantiles: dict[str, float]
    histogram: Histogram

    @property
    def split(self) -> float:
        """How far the queries are split into all and nothing; see `split`."""
        return float(split(self.statistic, self.mean, self.std))


class Passage(NamedTuple):
    """A passage of the corpus that can be displayed and run through the model again."""

    passage: int
    file: str
    start: int
    offset: int
    text: str
    ids: tuple[int, ...]
    ends: tuple[int, ...]
    """The character offset in the text at which each token ends."""


class Example(NamedTuple):
    """An example passage of a head: one with the highest means, or one from a decile of the sample."""

    kind: str
    """`top` or `decile`."""
    decile: int | None
    score: float
    """The mean over the queries of the passage."""
    position: int | None
    """The token position of the strongest query; known for examples of kind `top`."""
    passage: int
    file: str
    start: int
    offset: int
    text: str
    ids: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def strongest_span(self) -> tuple[int, int] | None:
        """The character offsets (start, stop) of the token of the strongest query."""
        if self.position is None:
            return None
        return (self.ends[self.position - 1] if self.position else 0), self.ends[self.position]


class _Index(NamedTuple):
    """The head and statistic of each row of heads.parquet."""

    layers: tuple[str, ...]
    heads: tuple[int, ...]
    statistics: tuple[str, ...]
    known: np.ndarray  # for each row, whether any query has a value
    places: tuple[np.ndarray, np.ndarray]  # head and statistic index of the known rows


@dataclass(frozen=True, eq=False)
class Survey:
    """The statistics of every head of a model over a corpus. Tables are read on access."""

    folder: AnyPath
    manifest: dict[str, Any]

    @cached_property
    def tables(self) -> TableReader:
        """Reads the tables of this survey; those in an object store are copied once, to a temporary folder."""
        files = table_files(self.manifest)
        local = to_local_folder(self.folder, {name: file.size for name, file in files.items()}, owner=self)
        return TableReader(local, files, self.folder)

    @cached_property
    def heads(self) -> HeadTable:
        """The mean of every statistic over all queries of the corpus, with labels."""
        return assign_labels(self.table("mean"))

    def table(self, column: str) -> HeadTable:
        """One column of heads.parquet as a table of heads and statistics.

        Args:
            column: `count`, `passages`, `mean`, `std`, `standard_error`, `min`, `p05`, `p25`, `p50`, `p75`, `p95` or
            `max`.

        Returns:
            A table with one column per statistic; NaN where no query has a value.

        Raises:
            SettingError: The column is unknown.
        """
        if column not in (*SUMMARY_COLUMNS, *QUANTILES):
            raise SettingError(
                f"unknown column {column!r} of a survey; expected one of {', '.join((*SUMMARY_COLUMNS, *QUANTILES))}"
            )
        layers, heads, statistics, known, places = self._index
        cells = np.full((len(heads), len(statistics)), np.nan)
        values = self.tables.read(HEADS, [column]).column(0)
        cells[places] = values.cast("float64").fill_null(float("nan")).to_numpy()[known]
        return HeadTable(layers, heads, dict(zip(statistics, torch.from_numpy(cells).unbind(1), strict=True)))

    @property
    def statistics(self) -> tuple[str, ...]:
        """The statistics for which some query has a value, in the order of `STATISTICS`."""
        return self._index.statistics

    def split(self) -> HeadTable:
        """How far the queries of each head are split into all and nothing, per statistic; see `split`."""
        means, stds = self.table("mean"), self.table("std")
        columns = {
            name: torch.from_numpy(split(name, means[name].numpy(), stds[name].numpy())) for name in self.statistics
        }
        return HeadTable(means.layers, means.heads, columns)

    def distribution(self, layer: str, head: int, statistic: str) -> Distribution:
        """The distribution of one statistic of one head.

        Args:
            layer: The name of a layer.
            head: The index of a head.
            statistic: The name of a statistic.

        Returns:
            Mean, standard deviation, quantiles and histogram over all queries.

        Raises:
            SettingError: The survey has no such head or statistic, or no query has a value.
        """
        self._check(layer, head, statistic)
        only = _filter_for(layer, head, statistic)
        row = self.tables.read(HEADS, [*SUMMARY_COLUMNS, *QUANTILES], only).to_pylist()
        if not row or not row[0]["count"]:
            raise SettingError(f"no query of this corpus has a value of {statistic} for head {head} of {layer}")
        return Distribution(
            statistic,
            quantiles={name: row[0][name] for name in QUANTILES},
            histogram=self.histogram(layer, head, statistic),
            **{name: row[0][name] for name in SUMMARY_COLUMNS},
        )

    def histogram(self, layer: str, head: int, statistic: str) -> Histogram:
        """The histogram of one statistic of one head.

        Args:
            layer: The name of a layer.
            head: The index of a head.
            statistic: The name of a statistic.

        Returns:
            Edges and counts of the bins that are not empty.
        """
        return self.histograms([(layer, head, statistic)])[0]

    def histograms(self, requested: Sequence[HeadStatistic]) -> list[Histogram]:
        """The histograms of several (layer, head, statistic) tuples, with one read of the table.

        Args:
            requested: The tuples.

        Returns:
            One histogram per tuple, in the same order.
        """
        for place in requested:
            self._check(*place)
        names = ("layer", "head", "statistic")
        only = {name: set(some) for name, some in zip(names, zip(*requested, strict=True), strict=False)}
        found = self.tables.read(HISTOGRAMS, [*names, *BINS], only)
        layers, layer_numbers = _dictionary_encode(found["layer"])
        statistics, numbers = _dictionary_encode(found["statistic"])
        heads = found["head"].to_numpy().tolist()
        places = [
            (layers[layer], head, statistics[statistic])
            for layer, head, statistic in zip(layer_numbers.tolist(), heads, numbers.tolist(), strict=True)
        ]
        bins = [found[name].to_numpy() for name in BINS]
        rows: dict[HeadStatistic, list[int]] = {place: [] for place in requested}
        for row in np.argsort(bins[0], kind="stable").tolist():
            if places[row] in rows:
                rows[places[row]].append(row)
        return [Histogram(*(some[rows[place]] for some in bins)) for place in requested]

    def examples(self, layer: str, head: int, statistic: str) -> list[Example]:
        """The passages with the highest means, the highest first, and then one of each decile, the lowest first.

        Args:
            layer: The name of a layer.
            head: The index of a head.
            statistic: The name of a statistic.

        Returns:
            The passages with their means; those with the highest also have the position of their strongest query.

        Raises:
            CheckpointError: The tables are damaged.
        """
        self._check(layer, head, statistic)
        columns = ["kind", "decile", "score", "position", "passage"]
        found = self.tables.read(EXAMPLES, columns, _filter_for(layer, head, statistic))
        if len(found) > NUM_TOP + NUM_DECILES:
            raise self.tables.damage_error(
                EXAMPLES, f"head {head} of {layer} has {len(found):,} examples of {statistic}"
            )
        rows = found.to_pylist()
        passages = self._passages({row["passage"] for row in rows})
        for row in rows:
            where = passages.get(row["passage"])
            if where is None or not 0 <= (row["position"] or 0) < len(where.ends):
                raise self.tables.damage_error(
                    PASSAGES, f"token {row['position']} of passage {row['passage']} not found"
                )
        rows.sort(key=lambda row: (row["decile"] or 0, -row["score"], row["passage"]))
        return [Example(**{**passages[row["passage"]]._asdict(), **row}) for row in rows]

    def passage(self, number: int) -> Passage | None:
        """The passage with the number that examples refer to, or None.

        Args:
            number: The number of a passage.

        Returns:
            The passage with its text, or None.
        """
        return self._passages({number}).get(number) if 0 <= number < MAX_PASSAGE else None

    def sample(self, count: int) -> list[Passage]:
        """The first passages of the random sample of the corpus, in random order.

        The sample has the lowest priorities of the corpus. The table also has passages with high scores, so the lowest
        priorities in the table are those of the sample.

        Args:
            count: How many passages to read, at most `SAMPLE_SIZE`; a smaller corpus has fewer.

        Raises:
            SettingError: The sample has fewer passages than `count` can ask for.
        """
        if not 1 <= count <= SAMPLE_SIZE:
            raise SettingError(f"survey: a sample has 1 to {SAMPLE_SIZE} passages, got {count}")
        numbers = self.tables.read(PASSAGES, ["passage"]).column(0).to_numpy()
        priorities = sampling_priorities(self.manifest["settings"].get("seed", 0), numbers.tolist())
        first = numbers[np.lexsort((numbers, priorities))][:count].tolist()
        found = self._passages(set(first))
        return [found[number] for number in first]

    def _passages(self, numbers: set[int]) -> dict[int, Passage]:
        found = self.tables.read(PASSAGES, Passage._fields, {"passage": numbers})
        if len(found) > len(numbers):
            raise self.tables.damage_error(PASSAGES, "a passage occurs twice")
        return {
            row["passage"]: Passage(**{**row, "ids": tuple(row["ids"]), "ends": tuple(row["ends"])})
            for row in found.to_pylist()
        }

    @cached_property
    def _index(self) -> _Index:
        rows = self.tables.read(HEADS, ["layer", "head", "statistic", "count"])
        layers, layer_numbers = _dictionary_encode(rows["layer"])
        names, name_numbers = _dictionary_encode(rows["statistic"])
        unknown = [name for name in names if name not in STATISTICS]
        if unknown:
            raise self.tables.damage_error(HEADS, f"unknown statistic {unknown[0][:50]!r}")
        if max(map(len, layers), default=0) > MAX_NAME or rows["head"].to_numpy().min(initial=0) < 0:
            raise self.tables.damage_error(HEADS, "it has an invalid layer or head")
        keys = layer_numbers * 2**32 + rows["head"].to_numpy()
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)  # in the order of the model, not by layer name
        known = rows["count"].to_numpy() > 0
        present = {names[number] for number in np.unique(name_numbers[known])}
        statistics = tuple(score for score in STATISTICS if score in present)
        columns = {name: at for at, name in enumerate(statistics)}
        places = np.argsort(order)[which], np.array([columns.get(name, -1) for name in names])[name_numbers]
        if len(np.unique(keys * len(STATISTICS) + name_numbers)) < len(keys):
            raise self.tables.damage_error(HEADS, "a statistic of a head occurs twice")
        chosen = keys[first[order]].tolist()
        return _Index(
            tuple(layers[key >> 32] for key in chosen),
            tuple(key % 2**32 for key in chosen),
            statistics,
            known,
            (places[0][known], places[1][known]),
        )

    def _check(self, layer: str, head: int, statistic: str) -> None:
        """Raise an error if the survey does not have this head or statistic."""
        self.heads[statistic]
        self.heads.head_scores(layer, head)


def open_survey(folder: str | Path | StorePath) -> Survey:
    """Open a finished survey.

    Standard errors treat each passage as one sample. Passages of the same document are correlated, so if documents have
    many passages, the true error is larger.

    Args:
        folder: The folder that `attnscope survey run MODEL CORPUS... --out FOLDER` or `run_survey` wrote, or its URL in
            an object store, of which the tables are copied to a temporary folder.

    Returns:
        The survey. The checksums of its tables have been verified; their rows are read on access.

    Raises:
        SettingError: The folder is not a survey, or the survey is not finished.
        CheckpointError: A file is missing or damaged, or another version of AttnScope wrote the survey.
    """
    folder = to_path(folder)
    with report_access(folder):
        if not folder.is_dir():
            raise SettingError(f"{folder} is not a folder; give the folder of a survey: attnscope survey run")
        if not (folder / MANIFEST).exists():
            if (folder / SURVEY).exists():
                raise SettingError(
                    f"the survey in {folder} is not finished; run the same command again, which resumes it"
                )
            raise SettingError(f"{folder} is not a survey (no {MANIFEST}); attnscope survey run makes one")
        survey = Survey(folder, read_manifest(folder))
        for name in TABLES:
            survey.tables.verify(name)
    return survey


def is_fraction(statistic: str) -> bool:
    """Whether a statistic is a fraction between 0 and 1; others are in nats, tokens or keys.

    >>> is_fraction("sink"), is_fraction("reach")
    (True, False)
    """
    return STATISTICS[statistic].ceiling == 1.0


def split(statistic: str, mean: Any, std: Any) -> Any:
    """The variance over queries, divided by m (1 - m), the largest variance that is possible at their mean m.

    0: all queries equal the mean. 1/3: uniform from 0 to 1. 1: each query is all or nothing, which the mean does not
    show. NaN for statistics that are not fractions, and at a mean of 0 or 1.

    >>> float(split("sink", 0.5, 0.5)), float(split("sink", 0.5, 0.0))
    (1.0, 0.0)
    """
    mean, std = np.asarray(mean, dtype=np.float64), np.asarray(std, dtype=np.float64)
    largest = mean * (1 - mean)
    if not is_fraction(statistic):
        return np.full_like(mean, np.nan)
    rounding = np.finfo(np.float32).eps  # a mean of float32 values may differ slightly from 1
    return np.divide(std**2, largest, where=largest > rounding, out=np.full_like(mean, np.nan)).clip(max=1.0)


def _filter_for(layer: str, head: int, statistic: str) -> Filters:
    return {"layer": [layer], "head": [head], "statistic": [statistic]}


def _dictionary_encode(column: Any) -> tuple[list[str], np.ndarray]:
    """The distinct strings of a column, and the index of the string of each row."""
    coded = column.combine_chunks().dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
