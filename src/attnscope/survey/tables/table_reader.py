"""`TableReader`: the tables of a survey, verified against the manifest before anything is read of them.

In: a folder, and what its manifest states about each table. Out: columns of the rows that match filters, or a
`CheckpointError`. A file that changed since it was verified is verified again. Sizes that the footer of a file states
are checked before its data is read, and strings stay dictionary encoded, so a small file cannot become a large table.
Does not know: what the columns mean. Memory: one row group, and the rows that match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.checksums import sha256_file
from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.stores.paths import AnyPath
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, PASSAGES
from attnscope.survey.partials.bins import NUM_BINS, STATISTICS
from attnscope.survey.partials.examples import NUM_DECILES, NUM_TOP, SAMPLE_SIZE
from attnscope.survey.tables.manifest import REMEDY, TableFile
from attnscope.survey.tables.parquet import COLUMNS, PASSAGES_PER_GROUP, QUANTILES, ROW_GROUP_SIZE, table_schema

Filters = Mapping[str, Collection[Any]]
"""The values that a row may have in each of some columns."""

MAX_HEADS = 2**17  # of a model; the largest open models have 2**14
MAX_GROUP_BYTES = 2**28  # uncompressed, of one row group
MAX_GROUP_VALUES = 2**25  # of one column in one row group
MAX_FOOTER_STRINGS, MAX_FOOTER_ITEMS = 2**26, 2**20
NULLABLE = {"mean", "std", "standard_error", "min", *QUANTILES, "max", "decile", "position"}
STRINGS = {name: [column for column, dtype in its.items() if dtype == "string"] for name, its in COLUMNS.items()}


class TableReader:
    """Reads the tables of a survey.

    Args:
        folder: The folder of the survey.
        files: What the manifest states about each table.
        source: The folder that errors name, if `folder` is a copy of it.
    """

    def __init__(self, folder: Path, files: Mapping[str, TableFile], source: AnyPath | None = None) -> None:
        self._folder, self._files, self._source = folder, files, source or folder
        self._verified: dict[str, tuple[int, int, int]] = {}

    def verify(self, name: str) -> None:
        """Check the checksum, the columns and the sizes of a table, unless its file is the one that was checked last.

        Raises:
            CheckpointError: The table is missing or damaged.
        """
        with self._convert_errors(name):
            status = (self._folder / name).stat()
            identity = status.st_ino, status.st_size, status.st_mtime_ns
            if self._verified.get(name) == identity:
                return
            self._check_rows(name)
            self._check_content(name, status.st_size)
            with self._open(name, dictionaries=False) as file:
                self._check_footer(name, file)
            self._verified[name] = identity

    def read(self, name: str, columns: Sequence[str], only: Filters | None = None) -> Any:
        """Read columns of a table as an Arrow table, of the rows that match all filters.

        Raises:
            CheckpointError: The table is missing or damaged.
        """
        self.verify(name)
        only = only or {}
        with self._convert_errors(name), self._open(name) as file:
            groups = [
                _matching_rows(file.read_row_group(group, columns=sorted({*columns, *only})), only).select(columns)
                for group in range(file.num_row_groups)
                if _may_match(file.metadata.row_group(group), only)
            ]
            found = import_extra("pyarrow").concat_tables([file.schema_arrow.empty_table().select(columns), *groups])
        for column in columns:
            if column not in NULLABLE and found[column].null_count:
                raise self.damage_error(name, f"the column {column} has empty cells")
        return found

    def damage_error(self, name: str, fault: str) -> CheckpointError:
        """The error for a damaged table."""
        return CheckpointError(f"{self._source / name} is damaged: {' '.join(fault.split())[:200]}; {REMEDY}")

    def _check_rows(self, name: str) -> None:
        """Compare the number of rows in the manifest with what a model can have."""
        heads, rest = divmod(self._files[HEADS].rows, len(STATISTICS))
        limits = {
            HEADS: heads * len(STATISTICS),
            HISTOGRAMS: heads * NUM_BINS,
            EXAMPLES: heads * len(STATISTICS) * (NUM_TOP + NUM_DECILES),
            PASSAGES: heads * len(STATISTICS) * NUM_TOP + SAMPLE_SIZE,
        }
        if rest or heads > MAX_HEADS:
            raise self.damage_error(HEADS, f"{self._files[HEADS].rows:,} rows are not those of a model")
        if self._files[name].rows > limits[name]:
            raise self.damage_error(
                name, f"{self._files[name].rows:,} rows, but {heads:,} heads have at most {limits[name]:,}"
            )

    def _check_content(self, name: str, size: int) -> None:
        expected = self._files[name]
        if size != expected.size:
            raise self.damage_error(name, f"it has {size:,} bytes, but the manifest states {expected.size:,}")
        if sha256_file(self._folder / name) != expected.sha256:
            raise self.damage_error(name, "its checksum is not the one in the manifest")

    def _check_footer(self, name: str, file: Any) -> None:
        """Compare the columns and sizes in the footer with the limits, before any data is read."""
        if not file.schema_arrow.equals(table_schema(name)):
            raise self.damage_error(name, "it has other columns")
        if file.metadata.num_rows != self._files[name].rows:
            raise self.damage_error(
                name, f"it has {file.metadata.num_rows:,} rows, but the manifest states {self._files[name].rows:,}"
            )
        max_rows = PASSAGES_PER_GROUP if name == PASSAGES else ROW_GROUP_SIZE
        for group in map(file.metadata.row_group, range(file.num_row_groups)):
            chunks = [group.column(column) for column in range(group.num_columns)]
            size = sum(chunk.total_uncompressed_size for chunk in chunks)
            values = max(chunk.num_values for chunk in chunks)
            if group.num_rows > max_rows or size > MAX_GROUP_BYTES or values > MAX_GROUP_VALUES:
                raise self.damage_error(name, f"a row group of {group.num_rows:,} rows and {size:,} bytes is too large")

    @contextmanager
    def _open(self, name: str, *, dictionaries: bool = True) -> Iterator[Any]:
        with (self._folder / name).open("rb") as source:  # Arrow opens only paths that are UTF-8
            yield import_extra("pyarrow.parquet").ParquetFile(
                source,
                read_dictionary=STRINGS[name] if dictionaries else None,
                thrift_string_size_limit=MAX_FOOTER_STRINGS,
                thrift_container_size_limit=MAX_FOOTER_ITEMS,
                page_checksum_verification=True,
            )

    @contextmanager
    def _convert_errors(self, name: str) -> Iterator[None]:
        """Turn errors of the system and of Arrow into one about the table."""
        try:
            yield
        except CheckpointError:
            raise
        except FileNotFoundError as error:
            raise CheckpointError(f"{self._source / name} not found, but the survey is finished; {REMEDY}") from error
        except (import_extra("pyarrow").ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise self.damage_error(name, str(error)) from error


def _may_match(group: Any, only: Filters) -> bool:
    """Whether the smallest and largest values of a row group leave room for the filters."""
    for column in map(group.column, range(group.num_columns)):
        statistics = column.statistics if column.path_in_schema in only else None
        if statistics is not None and statistics.has_min_max:
            low, high = statistics.min, statistics.max
            if not any(low <= value <= high for value in only[column.path_in_schema]):
                return False
    return True


def _matching_rows(table: Any, only: Filters) -> Any:
    matches = np.ones(len(table), bool)
    for name, values in only.items():
        matches &= _is_in(table[name].combine_chunks(), values)
    return table if matches.all() else table.filter(import_extra("pyarrow").array(matches))


def _is_in(column: Any, values: Collection[Any]) -> NDArray[np.bool_]:
    """Whether each cell has one of some values; strings are compared once for each entry of their dictionary."""
    if import_extra("pyarrow").types.is_dictionary(column.type):
        wanted = set(values)
        codes = [code for code, value in enumerate(column.dictionary.to_pylist()) if value in wanted]
        return np.isin(column.indices.to_numpy(zero_copy_only=False), codes)
    return np.isin(column.to_numpy(zero_copy_only=False), list(values))
