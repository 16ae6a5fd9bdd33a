"""Results as JSON on standard output, for `--json`; NaN and infinity become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.version import __version__

if TYPE_CHECKING:
    from attnscope.heads import HeadTable
    from attnscope.survey import Survey


def print_json(**fields: Any) -> None:
    """Print one JSON object, which starts with the version of AttnScope."""
    print(json.dumps(to_json({"attnscope": __version__, **fields}), indent=1, ensure_ascii=False, allow_nan=False))


def to_json(value: Any) -> Any:
    """Convert a value to JSON.

    >>> to_json({"scores": (1.5, float("nan"))})
    {'scores': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def heads_to_json(table: HeadTable) -> list[dict[str, Any]]:
    """Return for each head of a table its layer, index, labels and scores."""
    columns = {name: column.tolist() for name, column in table.columns.items()}
    labels = table.labels or ((),) * len(table)
    return [
        {
            "layer": layer,
            "head": head,
            "labels": labels[row],
            "scores": {name: column[row] for name, column in columns.items()},
        }
        for row, (layer, head) in enumerate(zip(table.layers, table.heads, strict=True))
    ]


def statistics_to_json(survey: Survey, heads: HeadTable) -> list[dict[str, Any]]:
    """Return for some heads of a survey their labels and statistics."""
    from attnscope.survey.tables.survey import QUANTILES, SUMMARY_COLUMNS

    tables = {number: survey.table(number) for number in (*SUMMARY_COLUMNS, *QUANTILES)} | {"split": survey.split()}
    rows = {place: at for at, place in enumerate(zip(survey.heads.layers, survey.heads.heads, strict=True))}
    labels = heads.labels or ((),) * len(heads)
    found = []
    for at, place in enumerate(zip(heads.layers, heads.heads, strict=True)):
        statistics = {
            name: {number: float(table[name][rows[place]]) for number, table in tables.items()}
            for name in survey.statistics
        }
        for numbers in statistics.values():
            for whole in ("count", "passages"):
                numbers[whole] = int(numbers[whole]) if math.isfinite(numbers[whole]) else 0
        found.append({"layer": place[0], "head": place[1], "labels": labels[at], "statistics": statistics})
    return found
