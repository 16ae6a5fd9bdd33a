"""`SurveyView`: a survey as the explorer shows it: heads by index, histograms on one scale, passages with a mark.

In: a `Survey`. Out: values for JSON; undefined numbers are left out.
Does not know: HTTP, models. Memory: the means and standard deviations of all heads; the rest is read on demand.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from attnscope.errors import SettingError
from attnscope.explorer.analysis.histogram_edges import histogram_edges
from attnscope.explorer.analysis.inspection import get_meaning
from attnscope.heads.scores import SCORES
from attnscope.heads.table import HeadTable
from attnscope.recording import Trace
from attnscope.stores.paths import report_access, to_path
from attnscope.survey.folder import MANIFEST, SURVEY
from attnscope.survey.tables.survey import Example, Survey

NUMBERS = ("count", "passages", "mean", "std", "standard_error")
MAX_TEXT = 4_000  # characters before and after the mark


def is_survey(folder: str | Path) -> bool:
    """Whether this is the folder of a survey, finished or not; it may be a URL in an object store."""
    with report_access(folder):
        return any((to_path(folder) / name).is_file() for name in (MANIFEST, SURVEY))


class Layer(NamedTuple):
    """A layer of the model, and the numbers of its surveyed heads."""

    name: str
    numbers: tuple[int, ...]


class SurveyView:
    """An open survey, with layers and heads by index."""

    def __init__(self, survey: Survey, name: str) -> None:
        self.survey, self.name = survey, name
        heads = survey.heads
        self._rows = {place: row for row, place in enumerate(zip(heads.layers, heads.heads, strict=True))}
        numbers: dict[str, list[int]] = {}
        for layer, head in self._rows:
            numbers.setdefault(layer, []).append(head)
        self.layers = [Layer(layer, tuple(those)) for layer, those in numbers.items()]
        self.statistics = survey.statistics

    def about(self) -> dict[str, Any]:
        """Return all heads, and the corpus."""
        manifest = self.survey.manifest
        labels = {label for own in self.survey.heads.labels or () for label in own}
        return {
            "name": self.name,
            "model": str(manifest.get("model", {}).get("name", "")),
            "corpus": {name: manifest["corpus"].get(name, 0) for name in ("documents", "passages", "tokens")},
            "problems": manifest.get("problems", {}).get("count", 0),
            "statistics": [{"name": name, "meaning": SCORES.get(name, "")} for name in self.statistics],
            "meanings": {label: get_meaning(label) for label in sorted(labels)},
            "layers": [{"name": layer.name, "numbers": list(layer.numbers)} for layer in self.layers],
            "heads": self._heads(),
        }

    def histograms(self, statistic: str) -> dict[str, Any]:
        """Return the histogram of a statistic in every head, as shares of its queries, on one scale."""
        edges = self._edges(statistic)
        places = [(layer.name, head) for layer in self.layers for head in layer.numbers]
        defined = [place for place in places if self._is_defined(place, statistic)]
        found = self.survey.histograms([(*place, statistic) for place in defined]) if defined else []
        shares = {place: _shares(histogram, edges) for place, histogram in zip(defined, found, strict=True)}
        by_layer = [[shares.get((layer.name, head), []) for head in layer.numbers] for layer in self.layers]
        return {"edges": edges, "shares": by_layer}

    def head(self, layer: int, head: int, statistic: str) -> dict[str, Any]:
        """Return the numbers, histogram and passages of a head; empty if no query has the statistic."""
        name, number = self.layers[layer].name, self.layers[layer].numbers[head]
        edges = self._edges(statistic)
        if not self._is_defined((name, number), statistic):
            return {"numbers": {}, "edges": edges, "shares": [], "examples": []}
        found = self.survey.distribution(name, number, statistic)
        numbers = {**{one: getattr(found, one) for one in NUMBERS}, **found.quantiles}
        return {
            "numbers": {one: value for one, value in numbers.items() if _is_number(value)},
            "edges": edges,
            "shares": _shares(found.histogram, edges),
            "examples": [_describe_passage(one) for one in self.survey.examples(name, number, statistic)],
        }

    def passage(self, number: int) -> Any | None:
        """Return a stored passage, with its ids."""
        return self.survey.passage(number)

    def find_head(self, trace: Trace, layer: int, head: int) -> tuple[int, int]:
        """Find a head of the survey in a trace; raises SettingError for a trace of another model."""
        wanted = self.layers[layer]
        if wanted.name not in trace.layers or not 0 <= head < len(wanted.numbers):
            raise SettingError(
                f"{trace.model} has no {wanted.name}: the survey is of another model; give that with --model"
            )
        numbers = list(trace.layers[wanted.name].heads)
        if wanted.numbers[head] not in numbers:
            raise SettingError(
                f"{wanted.name} of {trace.model} has no head {wanted.numbers[head]}: the survey is of another model; "
                "give that with --model"
            )
        return list(trace.layers).index(wanted.name), numbers.index(wanted.numbers[head])

    @cached_property
    def _counts(self) -> HeadTable:
        return self.survey.table("count")

    @cached_property
    def _largest(self) -> HeadTable:
        return self.survey.table("max")

    def _is_defined(self, place: tuple[str, int], statistic: str) -> bool:
        return bool(self._counts.columns[statistic][self._rows[place]] > 0)

    def _edges(self, statistic: str) -> list[float]:
        largest = self._largest.columns[statistic].numpy()
        known = largest[numpy.isfinite(largest)]
        return histogram_edges(float(known.max()) if len(known) else 1.0)

    def _heads(self) -> list[dict[str, Any]]:
        means, spread = self.survey.heads, self.survey.table("std")
        places = [(at, head) for at, layer in enumerate(self.layers) for head in range(len(layer.numbers))]
        rows = []
        for layer, head in places:
            row = self._rows[self.layers[layer].name, self.layers[layer].numbers[head]]
            rows.append(
                {
                    "place": [layer, head],
                    "labels": list(means.labels[row]) if means.labels is not None else [],
                    "means": _row(means, row),
                    "spread": _row(spread, row),
                }
            )
        return rows


def _row(table: HeadTable, row: int) -> dict[str, float]:
    values = {name: float(column[row]) for name, column in table.columns.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _shares(histogram: Any, edges: list[float]) -> list[float]:
    return [round(float(share), 6) for share in histogram.rebin(numpy.array(edges))]


def _describe_passage(example: Example) -> dict[str, Any]:
    """Split a passage into the token of its strongest query, and the text before and after."""
    text, (start, stop) = example.text, example.strongest_span or (0, 0)
    first, last = max(0, start - MAX_TEXT), stop + MAX_TEXT
    return {
        "kind": example.kind,
        "decile": example.decile,
        "score": example.score,
        "position": example.position,
        "passage": example.passage,
        "file": example.file,
        "start": example.start,
        "offset": example.offset,
        "tokens": len(example.ends),
        "before": text[first:start],
        "marked": text[start:stop],
        "after": text[stop:last],
        "cut": [first > 0, last < len(text)],
    }
