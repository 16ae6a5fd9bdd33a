"""Writes the result of a survey as four Parquet tables with a fixed schema.

    heads.parquet         one row per head and statistic; nulls where no query has a value
    histograms.parquet    one row per bin that is not empty
    examples.parquet      one row per example: the highest means, and the middle of each decile of the sample
    passages.parquet      one row per passage that an example refers to

In: the merged result. Out: files, written atomically, and their checksums. Does not know: their readers.
Memory: one table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.extras import import_extra
from attnscope.stores.paths import AnyPath, write_file
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, MANIFEST, PASSAGES
from attnscope.survey.partials.bins import NUM_BINS, STATISTICS, select_bins
from attnscope.survey.partials.examples import NO_PASSAGE
from attnscope.survey.partials.partial import PartialResult
from attnscope.survey.tables.manifest import TableFile

ROW_GROUP_SIZE = 2**16  # reading one head reads only its row group
PASSAGES_PER_GROUP, PASSAGE_GROUP_BYTES = 2**10, 2**24  # reading one passage reads only its row group
QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}

_HEAD = {"layer": "string", "head": "int32", "statistic": "string"}
COLUMNS = {
    HEADS: {
        **_HEAD, "count": "int64", "passages": "int64", "mean": "float64", "std": "float64",
        "standard_error": "float64", "min": "float64", **dict.fromkeys(QUANTILES, "float64"), "max": "float64",
    },
    HISTOGRAMS: {**_HEAD, "low": "float64", "high": "float64", "count": "int64"},
    EXAMPLES: {
        **_HEAD, "kind": "string", "decile": "int32", "score": "float64", "position": "int64", "passage": "int64",
    },
    PASSAGES: {
        "passage": "int64", "file": "string", "start": "int64", "offset": "int64", "tokens": "int64", "text": "string",
        "ids": "list<int32>", "ends": "list<int32>",
    },
}  # fmt: skip
"""The columns of each table, with their Arrow types."""


def write_tables(folder: AnyPath, merged: PartialResult) -> dict[str, TableFile]:
    """Write all four tables. This removes the manifest first; write it again afterwards.

    Returns:
        The size, the number of rows and the checksum of each table, for the manifest.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    written = {}
    for name, columns in (
        (HEADS, _heads(merged)),
        (HISTOGRAMS, _histograms(merged)),
        (EXAMPLES, _examples(merged)),
        (PASSAGES, _passages(merged)),
    ):
        table = _to_table(name, columns)
        content = _encode(name, table)
        write_file(folder / name, content)
        written[name] = TableFile(len(content), len(table), hashlib.sha256(content).hexdigest())
    return written


def table_schema(name: str) -> Any:
    """The Arrow schema of a table."""
    arrow = import_extra("pyarrow")
    return arrow.schema([(column, _arrow_type(arrow, dtype)) for column, dtype in COLUMNS[name].items()])


def _to_table(name: str, columns: dict[str, Any]) -> Any:
    arrow, schema = import_extra("pyarrow"), table_schema(name)
    arrays = [arrow.array(columns[field.name], field.type, from_pandas=True) for field in schema]  # NaN is null
    return arrow.table(arrays, schema=schema)


def _encode(name: str, table: Any) -> bytes:
    sink = import_extra("pyarrow").BufferOutputStream()
    writer = import_extra("pyarrow.parquet").ParquetWriter
    with writer(sink, table.schema, compression="zstd", write_page_checksum=True) as file:
        for start, stop in _row_groups(name, table):
            file.write_table(table.slice(start, stop - start), row_group_size=stop - start)
    return sink.getvalue().to_pybytes()


def _row_groups(name: str, table: Any) -> Iterator[tuple[int, int]]:
    """The first row of each row group, and the end of its rows."""
    if name != PASSAGES:
        yield from ((start, min(start + ROW_GROUP_SIZE, len(table))) for start in range(0, len(table), ROW_GROUP_SIZE))
        return
    start = size = 0
    for stop, (text, tokens) in enumerate(zip(table["text"], table["tokens"], strict=True), 1):
        size += len(text.as_py()) + 8 * tokens.as_py()  # an id and an end per token
        if stop - start == PASSAGES_PER_GROUP or size >= PASSAGE_GROUP_BYTES or stop == len(table):
            yield start, stop
            start, size = stop, 0


def _arrow_type(arrow: Any, dtype: str) -> Any:
    return arrow.list_(arrow.int32()) if dtype == "list<int32>" else arrow.type_for_alias(dtype)


def _key_columns(merged: PartialResult, heads: NDArray, statistics: NDArray) -> dict[str, Any]:
    """The columns layer, head and statistic of each row."""
    return {
        "layer": np.array(merged.layers, object)[heads],
        "head": np.array(merged.heads, np.int32)[heads],
        "statistic": np.array(list(STATISTICS), object)[statistics],
    }


def _heads(merged: PartialResult) -> dict[str, Any]:
    moments = merged.moments
    counted = moments.counts.ravel() > 0
    heads, statistics = (each.ravel() for each in np.indices(moments.counts.shape))
    found = {
        "count": moments.counts,
        "passages": moments.passages,
        "mean": moments.means,
        "std": moments.stds,
        "standard_error": moments.standard_errors,
        "min": np.where(moments.counts, moments.minima.astype(np.float64), np.nan),
        "max": np.where(moments.counts, moments.maxima.astype(np.float64), np.nan),
    }
    columns = _key_columns(merged, heads, statistics) | {name: each.ravel() for name, each in found.items()}
    quantiles = np.full((len(heads), len(QUANTILES)), np.nan)
    names = list(STATISTICS)
    for row in np.flatnonzero(counted).tolist():
        statistic = names[statistics[row]]
        counts = select_bins(moments.histograms[heads[row]], statistic)
        found = STATISTICS[statistic].quantiles(counts, list(QUANTILES.values()))
        quantiles[row] = np.clip(found, columns["min"][row], columns["max"][row])
    return columns | dict(zip(QUANTILES, quantiles.T, strict=True))


def _histograms(merged: PartialResult) -> dict[str, Any]:
    heads, bins = merged.moments.histograms.nonzero()
    all_bins = STATISTICS.values()
    statistics = np.repeat(np.arange(len(STATISTICS)), [len(its) for its in all_bins])
    highs = np.concatenate([its.edges for its in all_bins])
    lows = np.concatenate([np.concatenate([[0.0], its.edges[:-1]]) for its in all_bins])
    assert len(highs) == NUM_BINS
    return _key_columns(merged, heads, statistics[bins]) | {
        "low": lows[bins],
        "high": highs[bins],
        "count": merged.moments.histograms[heads, bins],
    }


def _examples(merged: PartialResult) -> dict[str, Any]:
    """For each head and statistic, the highest means first, then the deciles from the lowest."""
    top, sample = merged.examples.top, merged.examples.sample
    heads, statistics, places = (top.passages != NO_PASSAGE).nonzero()
    best = _key_columns(merged, heads, statistics) | {
        "kind": np.full(len(heads), "top", object),
        "decile": np.full(len(heads), None, object),
        "score": top.scores[heads, statistics, places],
        "position": top.positions[heads, statistics, places].astype(object),
        "passage": top.passages[heads, statistics, places],
    }
    deciles = sample.deciles()
    sampled, kinds, tenths = (deciles >= 0).nonzero()
    which = deciles[sampled, kinds, tenths]
    spread = _key_columns(merged, sampled, kinds) | {
        "kind": np.full(len(which), "decile", object),
        "decile": (tenths + 1).astype(object),
        "score": sample.means[which, sampled, kinds],
        "position": np.full(len(which), None, object),  # stored only for the highest means
        "passage": sample.passages[which],
    }
    order = np.lexsort((np.concatenate([statistics, kinds]), np.concatenate([heads, sampled])))  # lexsort is stable
    return {name: np.concatenate([best[name], spread[name]])[order] for name in best}


def _passages(merged: PartialResult) -> dict[str, Any]:
    found = merged.examples.passages
    columns = {
        name: [getattr(example, name) for example in found.values()]
        for name in COLUMNS[PASSAGES]
        if name not in ("passage", "tokens")
    }
    return columns | {"passage": list(found), "tokens": [len(example.ids) for example in found.values()]}
