"""A survey in a folder, opened: numbers against what was written, and folders that are none."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch

from attnscope.errors import CheckpointError, SettingError
from attnscope.heads import assign_labels
from attnscope.survey import open_survey
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, MANIFEST, PASSAGES
from attnscope.survey.partials.bins import RELATIVE_ACCURACY, STATISTICS
from attnscope.survey.tables.parquet import COLUMNS, ROW_GROUP_SIZE
from attnscope.survey.tables.survey import Histogram, split
from tests.survey.synthetic_surveys import WORDS, restate_tables, write_survey

FLOAT32 = 1e-6
PASSAGES_MADE, TOKENS = 30, 8
MAX_SECONDS = 1.0
LAYERS = ("blocks.0.attention", "blocks.1.attention")


def made_scores() -> list[dict[str, np.ndarray]]:
    """Four heads: the first looks back always, the second by halves of passages, the others never."""
    chance = np.random.default_rng(0)
    found = []
    for number in range(PASSAGES_MADE):
        previous = np.zeros((4, TOKENS))
        previous[0] = 0.9 + chance.uniform(-0.02, 0.02, TOKENS)
        previous[1] = float(number % 2)
        previous[2:] = chance.uniform(0.0, 0.1, (2, TOKENS))
        reach = np.full((4, TOKENS), 3.0 + number)
        reach[3] = np.nan
        sink = 1.0 - previous
        found.append({"previous": previous, "sink": sink, "reach": reach})
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_survey(tmp_path_factory.mktemp("survey") / "made", made_scores())


def all_queries(statistic: str) -> np.ndarray:
    """(heads, queries)."""
    return np.concatenate([passage[statistic] for passage in made_scores()], 1).astype(np.float32)


def test_heads_are_the_means_over_queries_with_the_labels_that_they_earn(folder: Path) -> None:
    table = open_survey(folder).heads
    assert table.layers == (LAYERS[0], LAYERS[0], LAYERS[1], LAYERS[1])
    assert table.heads == (0, 1, 0, 1)
    assert list(table.columns) == ["previous", "sink", "reach"]
    for name in ("previous", "sink"):
        np.testing.assert_allclose(table[name].numpy(), all_queries(name).mean(1), rtol=FLOAT32)
    assert table.labels is not None
    assert table.labels[:2] == (("previous",), ("previous", "sink"))
    assert table.labels == assign_labels(table).labels
    assert table.top("previous", 1).heads_by_layer == {LAYERS[0]: [0]}


def test_what_no_query_tells_is_unknown(folder: Path) -> None:
    survey = open_survey(folder)
    assert torch.isnan(survey.heads["reach"][3])
    assert not torch.isnan(survey.heads["reach"][:3]).any()
    assert "entropy" not in survey.statistics
    with pytest.raises(SettingError, match=r"reach for head 1 of blocks.1"):
        survey.distribution(LAYERS[1], 1, "reach")


def test_errors_are_those_of_passages_and_not_of_queries(folder: Path) -> None:
    table = open_survey(folder).table("standard_error")
    means = np.array([passage["previous"].astype(np.float32).mean(1) for passage in made_scores()])
    np.testing.assert_allclose(
        table["previous"].numpy(), means.std(0, ddof=1) / np.sqrt(PASSAGES_MADE), rtol=1e3 * FLOAT32
    )
    naive = all_queries("previous")[1].std() / np.sqrt(PASSAGES_MADE * TOKENS)
    assert float(table["previous"][1]) > 2 * naive


def test_a_distribution_has_every_query_once(folder: Path) -> None:
    found = open_survey(folder).distribution(LAYERS[1], 0, "previous")
    queries = all_queries("previous")[2]
    assert found.count == found.histogram.count.sum() == len(queries)
    assert found.passages == PASSAGES_MADE
    for low, high, count in zip(found.histogram.low, found.histogram.high, found.histogram.count, strict=True):
        assert ((queries > low) & (queries <= high)).sum() == count
    assert found.quantiles["p50"] == pytest.approx(np.quantile(queries, 0.5), rel=3 * RELATIVE_ACCURACY)
    assert found.quantiles["max"] == queries.max()
    assert found.std == pytest.approx(queries.std(), rel=1e-4)


def test_several_histograms_are_those_that_were_asked_for_in_their_order(folder: Path) -> None:
    survey = open_survey(folder)
    places = [(LAYERS[1], 1, "sink"), (LAYERS[0], 1, "previous"), (LAYERS[0], 1, "reach")]
    for place, found in zip(places, survey.histograms(places), strict=True):
        alone = survey.histogram(*place)
        assert (found.low.tolist(), found.count.tolist()) == (alone.low.tolist(), alone.count.tolist())
        assert found.count.sum() == PASSAGES_MADE * TOKENS


def test_a_head_that_does_it_by_halves_has_the_mean_of_one_that_half_does_it_and_another_split(folder: Path) -> None:
    table = open_survey(folder).split()
    assert float(table["previous"][1]) == pytest.approx(1.0, abs=FLOAT32)
    assert float(table["previous"][0]) < 0.01
    assert torch.isnan(table["reach"]).all()


def test_split_is_a_third_where_queries_are_spread_evenly() -> None:
    even = (np.arange(1000) + 0.5) / 1000
    assert float(split("sink", even.mean(), even.std())) == pytest.approx(1 / 3, rel=1e-5)
    assert np.isnan(split("sink", np.array([0.0, 1.0, np.nan]), np.zeros(3))).all()


def test_cells_of_a_histogram_have_all_queries() -> None:
    bins = Histogram(np.array([0.0, 0.3, 0.9]), np.array([0.1, 0.5, np.inf]), np.array([5, 10, 5]))
    np.testing.assert_allclose(bins.rebin(np.array([0.0, 0.4, 0.8, 1.0])), [0.5, 0.25, 0.25])
    np.testing.assert_allclose(bins.rebin(np.array([0.2, 0.4])), [1.0])
    empty = Histogram(np.array([]), np.array([]), np.array([], dtype=np.int64))
    assert empty.rebin(np.array([0.0, 0.5, 1.0])).tolist() == [0.0, 0.0]


def test_examples_are_the_strongest_passages_and_one_of_each_tenth(folder: Path) -> None:
    found = open_survey(folder).examples(LAYERS[0], 0, "previous")
    means = np.array([passage["previous"].astype(np.float32)[0].mean() for passage in made_scores()])
    top = [example for example in found if example.kind == "top"]
    assert [example.start // 100 for example in top] == np.argsort(-means)[: len(top)].tolist()
    best = made_scores()[top[0].start // 100]["previous"][0]
    assert top[0].position == best.argmax()
    assert top[0].strongest_span is not None
    assert top[0].text[slice(*top[0].strongest_span)] == WORDS[int(best.argmax())]
    deciles = [example for example in found if example.kind == "decile"]
    assert found == top + deciles
    assert [example.decile for example in deciles] == list(range(1, 11))
    assert [example.score for example in deciles] == sorted(example.score for example in deciles)


def test_a_passage_can_be_had_by_its_number_to_be_read_again(folder: Path) -> None:
    survey = open_survey(folder)
    example = survey.examples(LAYERS[0], 0, "previous")[0]
    found = survey.passage(example.passage)
    assert found is not None
    assert (found.text, found.ids, found.ends) == (example.text, tuple(range(TOKENS)), example.ends)
    for number in (10**9, -1, 2**63 - 1, 2**63, 2**64, 10**30):
        assert survey.passage(number) is None


def test_a_head_or_statistic_that_is_not_there_is_refused(folder: Path) -> None:
    survey = open_survey(folder)
    with pytest.raises(SettingError, match=r"head 9 of blocks.0.attention is not in this table"):
        survey.histogram(LAYERS[0], 9, "sink")
    with pytest.raises(SettingError, match="unknown score 'induction'"):
        survey.examples(LAYERS[0], 0, "induction")
    with pytest.raises(SettingError, match="p99"):
        survey.table("p99")


def test_folders_that_are_no_finished_survey_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not a folder"):
        open_survey(tmp_path / "nowhere")
    with pytest.raises(SettingError, match=r"is not a survey \(no manifest.json\); attnscope survey run makes one"):
        open_survey(tmp_path)
    (tmp_path / "survey.json").write_text("{}")
    with pytest.raises(SettingError, match=r"not finished; run the same command again"):
        open_survey(tmp_path)
    (tmp_path / MANIFEST).write_text('{"name": "another program"}')
    with pytest.raises(SettingError, match="not the manifest of a survey"):
        open_survey(tmp_path)


def test_another_format_and_missing_or_wrong_tables_are_refused(tmp_path: Path) -> None:
    folder = write_survey(tmp_path / "made", made_scores()[:3])
    survey = open_survey(folder)
    (folder / HISTOGRAMS).write_bytes((folder / HISTOGRAMS).read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"histograms.parquet is damaged.*run the same survey command again"):
        survey.histogram(LAYERS[0], 0, "sink")
    write_survey(folder, made_scores()[:3])
    table = parquet.read_table(folder / HEADS)
    for changed, fault in (
        (arrow.concat_tables([table.slice(1), table.slice(1, 1)]), "twice"),
        (table.drop_columns(["passages"]), "other columns"),
        (table.slice(1), "rows are not those of a model"),
        (with_column(table, "statistic", ["beauty"] * len(table)), "unknown statistic 'beauty'"),
        (with_column(table, "layer", ["l" * 2000] * len(table)), "invalid layer"),
        (with_column(table, "head", [-1] * len(table)), "invalid layer or head"),
        (with_column(table, "count", [None] * len(table)), "count has empty cells"),
    ):
        parquet.write_table(changed, folder / HEADS)
        restate_tables(folder)
        with pytest.raises(CheckpointError, match=rf"heads.parquet is damaged.*{fault}.*run the same survey command"):
            open_survey(folder).table("passages")
    (write_survey(folder, made_scores()[:3]) / EXAMPLES).unlink()
    with pytest.raises(CheckpointError, match=r"examples.parquet not found.*run the same survey command again"):
        open_survey(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"format": 3}))
    with pytest.raises(CheckpointError, match=r"format 3.*reads format 2; update AttnScope"):
        open_survey(folder)


def with_column(table: arrow.Table, name: str, values: list[object]) -> arrow.Table:
    """The table with other values in one column."""
    at = table.column_names.index(name)
    return table.set_column(at, name, arrow.array(values, table.schema.field(name).type))


def test_a_table_that_is_written_again_is_verified_again(tmp_path: Path) -> None:
    folder = write_survey(tmp_path / "made", made_scores()[:3])
    survey = open_survey(folder)
    before = survey.table("mean")["sink"].tolist()
    write_survey(folder, made_scores()[:3])
    assert survey.table("mean")["sink"].tolist() == before
    write_survey(folder, made_scores()[:4])
    with pytest.raises(CheckpointError, match=r"heads.parquet is damaged"):
        survey.table("mean")


@pytest.mark.timed
def test_the_survey_of_a_model_with_5120_heads_opens_within_a_second(tmp_path: Path, folder: Path) -> None:
    bins, num_rows = 100, 80 * 64 * len(STATISTICS)
    of_layer, of_head, of_statistic = np.indices((80, 64, len(STATISTICS))).reshape(3, -1)
    named = {
        "layer": arrow.array([f"model.layers.{layer}.self_attn" for layer in range(80)]).take(arrow.array(of_layer)),
        "head": arrow.array(of_head, "int32"),
        "statistic": arrow.array(list(STATISTICS)).take(arrow.array(of_statistic)),
    }
    numbers = {name: np.random.default_rng(0).random(num_rows) for name in COLUMNS[HEADS] if name not in named}
    numbers["count"] = numbers["passages"] = np.full(num_rows, 1000)
    numbers_table = arrow.table(named | numbers)
    parquet.write_table(numbers_table, tmp_path / HEADS, row_group_size=ROW_GROUP_SIZE)
    low, each = np.tile(np.geomspace(1e-4, 1.0, bins), num_rows), arrow.array(np.repeat(np.arange(num_rows), bins))
    rows = {name: column.take(each) for name, column in named.items()}
    rows |= {"low": low, "high": low * 1.04, "count": np.full(len(low), 10)}
    parquet.write_table(arrow.table(rows), tmp_path / HISTOGRAMS, compression="zstd", row_group_size=ROW_GROUP_SIZE)
    for name in (EXAMPLES, PASSAGES, MANIFEST):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    restate_tables(tmp_path)
    start = time.perf_counter()
    survey = open_survey(tmp_path)
    assert len(survey.heads.top("sink", 20)) == 20
    opened = time.perf_counter() - start
    assert survey.histogram("model.layers.79.self_attn", 63, "sink").count.sum() == 10 * bins
    read = time.perf_counter() - start - opened
    assert opened < MAX_SECONDS
    assert read < MAX_SECONDS
