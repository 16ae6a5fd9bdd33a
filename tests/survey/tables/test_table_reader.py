"""Tables are verified before they are read: damage, and small files that would become large tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from attnscope.errors import CheckpointError
from attnscope.survey import open_survey
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, PASSAGES, TABLES
from attnscope.survey.tables import table_reader
from attnscope.survey.tables.parquet import ROW_GROUP_SIZE
from tests.survey.synthetic_surveys import clustered, restate_tables, write_survey

FLIPS = 60  # of each table
LAYER = "blocks.0.attention"
MEANS = np.array([0.1, 0.3, 0.6, 0.9])
MAX_POOL_BYTES = 32 * 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scores = [{"sink": share, "reach": 100 * share} for share in clustered(np.random.default_rng(0), 20, MEANS)]
    return write_survey(tmp_path / "made", scores)


@pytest.fixture
def pool() -> Iterator[Any]:
    """Counts the memory that Arrow allocates during a test."""
    before = arrow.default_memory_pool()
    counting = arrow.proxy_memory_pool(before)
    arrow.set_memory_pool(counting)
    yield counting
    arrow.set_memory_pool(before)


@pytest.mark.parametrize("name", TABLES)
def test_every_flipped_bit_of_a_table_is_found(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    open_survey(folder)
    for place in np.random.default_rng(1).integers(0, 8 * len(whole), FLIPS).tolist():
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        (folder / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name} is damaged.*run the same survey command again"):
            open_survey(folder)
    for damaged in (b"", whole[:-1], whole + b"\0", whole[: len(whole) // 2]):
        (folder / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
            open_survey(folder)


def repeat(path: Path, rows: int, group: int = ROW_GROUP_SIZE, **changes: list[Any]) -> None:
    """Write the first row of a table again and again, which takes next to no bytes, with other cells if given."""
    first = parquet.read_table(path).slice(0, 1)
    for name, value in changes.items():
        at = first.column_names.index(name)
        first = first.set_column(at, name, arrow.array(value, first.schema.field(name).type))
    for at, field in enumerate(first.schema):
        if field.type == "string":  # as a dictionary with one entry, which is written once
            first = first.set_column(at, field.name, first[field.name].dictionary_encode())
    whole = first.take(np.zeros(min(rows, group), np.int64))
    options: dict[str, Any] = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 2**26}
    with parquet.ParquetWriter(path, first.schema, **options) as writer:
        for start in range(0, rows, group):
            writer.write_table(whole.slice(0, min(group, rows - start)), row_group_size=group)


def refuse_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        pytest.fail("data was read")

    for name in ("read", "read_row_group", "read_row_groups", "iter_batches"):
        monkeypatch.setattr(parquet.ParquetFile, name, read)
    monkeypatch.setattr(parquet, "read_table", read)


@pytest.mark.parametrize(
    ("name", "rows", "group", "fault"),
    [
        (HEADS, 11 * (2**17 + 1), ROW_GROUP_SIZE, "rows are not those of a model"),
        (HEADS, 45, ROW_GROUP_SIZE, "rows are not those of a model"),
        (HISTOGRAMS, 2_000_000, ROW_GROUP_SIZE, "4 heads have at most"),
        (EXAMPLES, 4 * 11 * 14 + 1, ROW_GROUP_SIZE, "4 heads have at most 616"),
        (PASSAGES, 4 * 11 * 4 + 257, 1024, "4 heads have at most 432"),
    ],
)
def test_more_rows_than_a_model_has_are_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, rows: int, group: int, fault: str
) -> None:
    repeat(folder / name, rows, group)
    assert (folder / name).stat().st_size < 200_000
    restate_tables(folder)
    refuse_to_read(monkeypatch)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: .*{fault}"):
        open_survey(folder)


def test_row_groups_that_are_too_large_are_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_read(monkeypatch)
    for limit, value in (("MAX_GROUP_BYTES", 100), ("MAX_GROUP_VALUES", 10), ("ROW_GROUP_SIZE", 40)):
        with monkeypatch.context() as smaller:
            smaller.setattr(table_reader, limit, value)
            with pytest.raises(CheckpointError, match=r"heads.parquet is damaged: a row group of 44 rows.*too large"):
                open_survey(folder)
    open_survey(folder)


def test_rows_that_the_manifest_does_not_state_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restate_tables(folder, {HISTOGRAMS: 3})
    refuse_to_read(monkeypatch)
    with pytest.raises(CheckpointError, match=r"histograms.parquet is damaged: .* rows, but the manifest states 3"):
        open_survey(folder)


def test_a_long_string_in_every_row_is_read_once(folder: Path, pool: Any) -> None:
    """8 MB of one letter, 10,000 times: a few kilobytes in the file, 80 GB as a column of strings."""
    repeat(folder / HISTOGRAMS, 10_000, layer=["x" * 2**23])
    assert (folder / HISTOGRAMS).stat().st_size < 100_000
    restate_tables(folder)
    assert open_survey(folder).histogram(LAYER, 0, "sink").count.sum() == 0
    assert pool.max_memory() < MAX_POOL_BYTES


def test_examples_and_passages_that_occur_too_often_are_refused(folder: Path) -> None:
    survey = open_survey(folder)
    examples = survey.examples(LAYER, 0, "sink")
    first = parquet.read_table(folder / PASSAGES).slice(0, 1)
    number = first["passage"][0].as_py()
    repeat(folder / PASSAGES, 3, 1024)
    restate_tables(folder)
    with pytest.raises(CheckpointError, match=r"passages.parquet is damaged: a passage occurs twice"):
        open_survey(folder).passage(number)
    repeat(folder / EXAMPLES, len(examples) + 1, layer=[LAYER], head=[0], statistic=["sink"])
    restate_tables(folder)
    with pytest.raises(CheckpointError, match=r"examples.parquet is damaged: head 0 .* has 15 examples of sink"):
        open_survey(folder).examples(LAYER, 0, "sink")


def test_passages_are_divided_into_row_groups_by_number_and_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscope.survey.tables.parquet.PASSAGE_GROUP_BYTES", 500)
    scores = [{"sink": share} for share in clustered(np.random.default_rng(0), 20, MEANS)]
    folder = write_survey(tmp_path / "made", scores)
    metadata = parquet.read_metadata(folder / PASSAGES)
    assert metadata.num_row_groups > 2
    assert metadata.num_rows == 20
    survey = open_survey(folder)
    for example in survey.examples(LAYER, 0, "sink"):
        found = survey.passage(example.passage)
        assert found is not None
        assert found.text == example.text


def test_a_folder_with_a_name_that_is_not_unicode_is_opened(folder: Path, tmp_path: Path) -> None:
    named = folder.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    survey = open_survey(named)
    assert survey.examples(LAYER, 0, "sink")
    (named / HEADS).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"heads.parquet is damaged"):
        open_survey(named)
