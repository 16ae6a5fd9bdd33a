"""Tables that others can read: their columns, and what stands in them."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, PASSAGES
from attnscope.survey.partials.bins import RELATIVE_ACCURACY, STATISTICS, select_bins
from attnscope.survey.partials.partial import PartialResult, merge_partials
from attnscope.survey.tables.parquet import COLUMNS, write_tables
from tests.survey.random_shards import LAYERS, shard_of

ROUNDING = 1e-12
NUM_HEADS = sum(map(len, LAYERS.values()))


def read(path: Path) -> Any:
    """A table as pandas has it, which pandas' own types describe too loosely."""
    return pandas.read_parquet(path)


@pytest.fixture(scope="module")
def merged() -> PartialResult:
    """Some shards, of which one has no passage."""
    return merge_partials(shard_of(number, 0, batches=number % 4) for number in range(9))


@pytest.fixture(scope="module")
def folder(merged: PartialResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where their tables lie."""
    folder = tmp_path_factory.mktemp("survey")
    write_tables(folder, merged)
    return folder


def test_columns_and_types_are_fixed(folder: Path, tmp_path: Path) -> None:
    write_tables(tmp_path, PartialResult.empty())  # also where there is nothing to tell types by
    for name, columns in COLUMNS.items():
        for place in (folder, tmp_path):
            schema = pyarrow.parquet.read_schema(place / name)
            assert schema.names == list(columns)
            kinds = [str(kind).replace("double", "float64").replace("element: ", "") for kind in schema.types]
            assert kinds == list(columns.values())
    assert list(COLUMNS[HEADS]) == [
        "layer", "head", "statistic", "count", "passages", "mean", "std", "standard_error",
        "min", "p05", "p25", "p50", "p75", "p95", "max",
    ]  # fmt: skip


def test_heads_have_a_row_for_each_statistic_in_the_order_of_the_model(folder: Path, merged: PartialResult) -> None:
    heads = read(folder / HEADS)
    rows = [(layer, head, name) for layer, its in LAYERS.items() for head in its for name in STATISTICS]
    assert list(zip(heads["layer"], heads["head"], heads["statistic"], strict=True)) == rows
    moments = merged.moments
    for column, numbers in {
        "count": moments.counts,
        "passages": moments.passages,
        "mean": moments.sums / moments.counts,
        "std": moments.stds,
        "standard_error": moments.standard_errors,
        "min": moments.minima,
        "max": moments.maxima,
    }.items():
        np.testing.assert_allclose(heads[column], numbers.ravel(), rtol=ROUNDING)


def test_quantiles_are_those_of_the_bins_within_the_extremes(folder: Path, merged: PartialResult) -> None:
    heads = read(folder / HEADS)
    shares = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
    for row, (_, found) in enumerate(heads.iterrows()):
        bins = STATISTICS[str(found["statistic"])]
        counts = select_bins(merged.moments.histograms[row // len(STATISTICS)], str(found["statistic"]))
        values = np.repeat(bins.centers, counts)
        exact = np.quantile(values, list(shares.values()), method="lower").clip(found["min"], found["max"])
        np.testing.assert_allclose(found[list(shares)].astype(float), exact, rtol=ROUNDING + 1e-9)
    assert (heads["p05"] < heads["p50"] * (1 - RELATIVE_ACCURACY)).any()


def test_histograms_have_the_bins_that_are_not_empty(folder: Path, merged: PartialResult) -> None:
    found = read(folder / HISTOGRAMS)
    assert (found["count"] > 0).all()
    assert found["count"].sum() == merged.moments.counts.sum()
    row = 0
    for head, (layer, number) in enumerate(zip(merged.layers, merged.heads, strict=True)):
        for statistic, bins in STATISTICS.items():
            counts = select_bins(merged.moments.histograms[head], statistic)
            for at in np.flatnonzero(counts).tolist():
                low = bins.edges[at - 1] if at else 0.0
                wanted = (layer, number, statistic, low, bins.edges[at], counts[at])
                assert tuple(found.iloc[row]) == wanted
                row += 1
    assert row == len(found)


def test_examples_are_the_top_and_the_deciles_of_each_head(folder: Path, merged: PartialResult) -> None:
    found = read(folder / EXAMPLES)
    top, sample = merged.examples.top, merged.examples.sample
    deciles = sample.deciles()
    names = list(STATISTICS)
    groups = list(found.groupby(["layer", "head", "statistic"], sort=False))
    assert [key for key, _ in groups] == [
        (layer, head, name) for layer, its in LAYERS.items() for head in its for name in names
    ]
    for number, (_, rows) in enumerate(groups):
        at = divmod(number, len(names))
        assert rows["kind"].tolist() == ["top"] * 4 + ["decile"] * 10
        best, spread = rows[:4], rows[4:]
        assert best["decile"].isna().all()
        assert best["passage"].tolist() == top.passages[at].tolist()
        assert best["position"].tolist() == top.positions[at].tolist()
        assert best["score"].tolist() == top.scores[at].tolist()
        assert spread["decile"].tolist() == list(range(1, 11))
        assert spread["position"].isna().all()
        assert spread["passage"].tolist() == sample.passages[deciles[at]].tolist()
        assert spread["score"].tolist() == sample.means[deciles[at], at[0], at[1]].tolist()


def test_every_example_has_its_passage_with_its_text(folder: Path, merged: PartialResult) -> None:
    examples, passages = read(folder / EXAMPLES), read(folder / PASSAGES)
    assert set(examples["passage"]) <= set(passages["passage"])
    for number, row in zip(merged.examples.passages, passages.itertuples(), strict=True):
        example = merged.examples.passages[number]
        assert (row.passage, row.file, row.start, row.offset) == (number, example.file, example.start, example.offset)
        assert (row.text, tuple(row.ids), tuple(row.ends)) == (example.text, example.ids, example.ends)
        assert row.tokens == len(example.ids) == len(example.ends)


def test_what_no_query_tells_is_null(tmp_path: Path) -> None:
    write_tables(tmp_path, PartialResult.empty(["layer"] * 2, [0, 1]))
    heads = read(tmp_path / HEADS)
    assert len(heads) == 2 * len(STATISTICS)
    assert (heads[["count", "passages"]] == 0).all(axis=None)
    assert heads.drop(columns=["layer", "head", "statistic", "count", "passages"]).isna().all(axis=None)
    assert [len(read(tmp_path / name)) for name in (HISTOGRAMS, EXAMPLES, PASSAGES)] == [0, 0, 0]


def test_the_same_survey_gives_the_same_bytes(folder: Path, merged: PartialResult, tmp_path: Path) -> None:
    write_tables(tmp_path, merged)
    for name in COLUMNS:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_a_database_reads_them_too(folder: Path, merged: PartialResult) -> None:
    query = f"select count(*), sum(count) from '{folder / HEADS}' where statistic = 'sink'"
    column = list(STATISTICS).index("sink")
    assert duckdb.connect().execute(query).fetchall() == [(NUM_HEADS, merged.moments.counts[:, column].sum())]
