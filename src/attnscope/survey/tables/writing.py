"""The result of a survey as four Parquet tables, whose columns and types are fixed.

    heads.parquet         a row for each head and statistic; nulls where no query counts
    histograms.parquet    its bins, but for empty ones
    examples.parquet      its example passages: the highest means, and the middle of each tenth of a sample
    passages.parquet      the passages that examples are

In: a merged partial. Out: files, each whole or not there. Does not know: who reads them. Memory: one table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.extras import import_extra
from attnscope.survey.folder import EXAMPLES, HEADS, HISTOGRAMS, MANIFEST, PASSAGES
from attnscope.survey.tally.examples import NOBODY
from attnscope.survey.tally.part_files import write_whole
from attnscope.survey.tally.partial import Partial
from attnscope.survey.tally.statistics import NUM_BINS, STATISTICS, bins_of

ROWS = 2**16  # of a group: who asks for one head reads its group and passes over the others
SHARES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}

_HEAD = {"layer": "string", "head": "int32", "statistic": "string"}
COLUMNS = {
    HEADS: {
        **_HEAD, "count": "int64", "passages": "int64", "mean": "float64", "deviation": "float64",
        "standard_error": "float64", "smallest": "float64", **dict.fromkeys(SHARES, "float64"), "largest": "float64",
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
"""The columns of each table, with their types in Arrow."""


def write_tables(folder: Path, merged: Partial) -> None:
    """Write all four. The manifest, which says that they are there, is taken away first; write it after them."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for name, columns in (
        (HEADS, _heads(merged)),
        (HISTOGRAMS, _histograms(merged)),
        (EXAMPLES, _examples(merged)),
        (PASSAGES, _passages(merged)),
    ):
        write_whole(folder / name, _parquet(name, columns))


def _parquet(name: str, columns: dict[str, Any]) -> bytes:
    arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
    kinds = {column: _type(arrow, kind) for column, kind in COLUMNS[name].items()}
    arrays = [arrow.array(columns[column], kind, from_pandas=True) for column, kind in kinds.items()]  # NaN is null
    table = arrow.table(arrays, schema=arrow.schema(list(kinds.items())))
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", row_group_size=ROWS)
    return sink.getvalue().to_pybytes()


def _type(arrow: Any, kind: str) -> Any:
    return arrow.list_(arrow.int32()) if kind == "list<int32>" else arrow.type_for_alias(kind)


def _named(merged: Partial, heads: NDArray, statistics: NDArray) -> dict[str, Any]:
    """Columns that say which head and statistic each row is about."""
    return {
        "layer": np.array(merged.layers, object)[heads],
        "head": np.array(merged.heads, np.int32)[heads],
        "statistic": np.array(list(STATISTICS), object)[statistics],
    }


def _heads(merged: Partial) -> dict[str, Any]:
    moments = merged.moments
    counted = moments.counts.ravel() > 0
    heads, statistics = (each.ravel() for each in np.indices(moments.counts.shape))
    found = {
        "count": moments.counts,
        "passages": moments.passages,
        "mean": moments.means,
        "deviation": moments.deviations,
        "standard_error": moments.standard_errors,
        "smallest": np.where(moments.counts, moments.smallest.astype(np.float64), np.nan),
        "largest": np.where(moments.counts, moments.largest.astype(np.float64), np.nan),
    }
    columns = _named(merged, heads, statistics) | {name: each.ravel() for name, each in found.items()}
    quantiles = np.full((len(heads), len(SHARES)), np.nan)
    names = list(STATISTICS)
    for row in np.flatnonzero(counted).tolist():
        statistic = names[statistics[row]]
        counts = bins_of(moments.histograms[heads[row]], statistic)
        found = STATISTICS[statistic].quantiles(counts, list(SHARES.values()))
        quantiles[row] = np.clip(found, columns["smallest"][row], columns["largest"][row])
    return columns | dict(zip(SHARES, quantiles.T, strict=True))


def _histograms(merged: Partial) -> dict[str, Any]:
    heads, bins = merged.moments.histograms.nonzero()
    all_bins = STATISTICS.values()
    statistics = np.repeat(np.arange(len(STATISTICS)), [len(its) for its in all_bins])
    highs = np.concatenate([its.edges for its in all_bins])
    lows = np.concatenate([np.concatenate([[0.0], its.edges[:-1]]) for its in all_bins])
    assert len(highs) == NUM_BINS
    return _named(merged, heads, statistics[bins]) | {
        "low": lows[bins],
        "high": highs[bins],
        "count": merged.moments.histograms[heads, bins],
    }


def _examples(merged: Partial) -> dict[str, Any]:
    """For each head and statistic first the highest means, then the deciles from the lowest."""
    top, sample = merged.examples.top, merged.examples.sample
    heads, statistics, places = (top.passages != NOBODY).nonzero()
    best = _named(merged, heads, statistics) | {
        "kind": np.full(len(heads), "top", object),
        "decile": np.full(len(heads), None, object),
        "score": top.scores[heads, statistics, places],
        "position": top.positions[heads, statistics, places].astype(object),
        "passage": top.passages[heads, statistics, places],
    }
    deciles = sample.deciles()
    sampled, kinds, tenths = (deciles >= 0).nonzero()
    which = deciles[sampled, kinds, tenths]
    spread = _named(merged, sampled, kinds) | {
        "kind": np.full(len(which), "decile", object),
        "decile": (tenths + 1).astype(object),
        "score": sample.means[which, sampled, kinds],
        "position": np.full(len(which), None, object),  # only the highest means are kept with their places
        "passage": sample.passages[which],
    }
    order = np.lexsort((np.concatenate([statistics, kinds]), np.concatenate([heads, sampled])))  # which is stable
    return {name: np.concatenate([best[name], spread[name]])[order] for name in best}


def _passages(merged: Partial) -> dict[str, Any]:
    found = merged.examples.passages
    columns = {
        name: [getattr(example, name) for example in found.values()]
        for name in COLUMNS[PASSAGES]
        if name not in ("passage", "tokens")
    }
    return columns | {"passage": list(found), "tokens": [len(example.ids) for example in found.values()]}
