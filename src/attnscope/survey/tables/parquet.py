"""Writes the result of a survey as four Parquet tables with a fixed schema.

    heads.parquet         one row per head and statistic; nulls where no query has a value
    histograms.parquet    one row per bin that is not empty
    examples.parquet      one row per example: the highest means, and the middle of each decile of the sample
    passages.parquet      one row per passage that an example refers to

In: the merged result. Out: files, written atomically. Does not know: their readers. Memory: one table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.atomic_files import write_atomically
from attnscope.extras import import_extra
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, MANIFEST, PASSAGES
from attnscope.survey.partials.bins import NUM_BINS, STATISTICS, select_bins
from attnscope.survey.partials.examples import NO_PASSAGE
from attnscope.survey.partials.partial import PartialResult

ROW_GROUP_SIZE = 2**16  # reading one head reads only its row group
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


def write_tables(folder: Path, merged: PartialResult) -> None:
    """Write all four tables. This removes the manifest first; write it again afterwards."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for name, columns in (
        (HEADS, _heads(merged)),
        (HISTOGRAMS, _histograms(merged)),
        (EXAMPLES, _examples(merged)),
        (PASSAGES, _passages(merged)),
    ):
        write_atomically(folder / name, _parquet(name, columns))


def _parquet(name: str, columns: dict[str, Any]) -> bytes:
    arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
    types = {column: _arrow_type(arrow, dtype) for column, dtype in COLUMNS[name].items()}
    arrays = [arrow.array(columns[column], dtype, from_pandas=True) for column, dtype in types.items()]  # NaN is null
    table = arrow.table(arrays, schema=arrow.schema(list(types.items())))
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP_SIZE)
    return sink.getvalue().to_pybytes()


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
