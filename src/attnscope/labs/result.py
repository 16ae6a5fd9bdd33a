"""`Result`: the tables, figures and verdicts of a run, as HTML, JSON and files."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from attnscope.labs.claims import CLAIMS
from attnscope.labs.verdicts import Decision, Verdict
from attnscope.version import __version__

DOTS_PER_INCH = 150
COLOURS = {
    Verdict.HOLDS: "#009e73",
    Verdict.HOLDS_WHEN: "#e69f00",
    Verdict.DOES_NOT_HOLD: "#d55e00",
    Verdict.NOT_SHOWN: "#888888",
    Verdict.INCONCLUSIVE: "#888888",
}
"""Colours of verdicts in HTML, distinguishable with colour blindness."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: title, columns, rows of text and numbers, and a remark."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""

    def text_rows(self) -> Iterator[tuple[str, ...]]:
        """Return the rows as text."""
        yield from (tuple(format_cell(cell) for cell in row) for row in self.rows)

    @property
    def is_numeric(self) -> tuple[bool, ...]:
        """For each column, whether it contains only numbers; these are aligned to the right."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.columns)
        return tuple(
            all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in column) for column in columns
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A matplotlib figure, with the name of its file and a caption."""

    name: str
    drawing: Any
    caption: str

    def png(self) -> bytes:
        """Return the figure as the bytes of a PNG file."""
        file = BytesIO()
        self.drawing.savefig(file, format="png", dpi=DOTS_PER_INCH)
        return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one run of a lab."""

    name: str
    title: str
    size: str
    seed: int
    findings: list[Table | Figure | Decision] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    """The trained models that were used: fingerprint, description and dtype."""

    @property
    def tables(self) -> list[Table]:
        """The tables, in order."""
        return [finding for finding in self.findings if isinstance(finding, Table)]

    @property
    def figures(self) -> list[Figure]:
        """The figures, in order."""
        return [finding for finding in self.findings if isinstance(finding, Figure)]

    @property
    def decisions(self) -> list[Decision]:
        """The verdicts, in order."""
        return [finding for finding in self.findings if isinstance(finding, Decision)]

    @property
    def inconclusive(self) -> list[Decision]:
        """The verdicts with a measurement outside its interval."""
        return [decision for decision in self.decisions if decision.verdict is Verdict.INCONCLUSIVE]

    def findings_from(self, first: int) -> Result:
        """Return a copy with the findings from this index on.

        Args:
            first: The index.

        Returns:
            The copy.
        """
        return replace(self, findings=self.findings[first:])

    def to_json(self) -> dict[str, Any]:
        """Return everything except the figures as JSON values; NaN and infinity become strings."""
        return {
            "attnscope": __version__,
            "lab": self.name,
            "title": self.title,
            "size": self.size,
            "seed": self.seed,
            "models": self.models,
            "claims": [_decision_to_json(decision) for decision in self.decisions],
            "tables": [
                {"title": table.title, "columns": table.columns, "rows": _to_json(table.rows), "note": table.note}
                for table in self.tables
            ],
            "figures": [{"name": figure.name, "caption": figure.caption} for figure in self.figures],
        }

    def write(self, folder: Path) -> None:
        """Write `result.json`, and each figure as PNG and SVG, to a folder.

        Args:
            folder: The folder.
        """
        from attnscope.figures.drawing import to_svg

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(
            json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
        for figure in self.figures:
            (folder / f"{figure.name}.png").write_bytes(figure.png())
            (folder / f"{figure.name}.svg").write_bytes(to_svg(figure.drawing))

    def _repr_html_(self) -> str:
        """Return the findings as HTML, for notebooks."""
        return "\n".join(_html(finding) for finding in self.findings)


def format_cell(cell: Any) -> str:
    """Format a cell of a table.

    >>> [format_cell(cell) for cell in (0.123456, 66048, 1e-9, 2359296.0, "row")]
    ['0.1235', '66,048', '1e-09', '2,359,296', 'row']
    """
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if 1000 <= abs(cell) < 1e9 else f"{cell:.4g}"
    return str(cell)


def _to_json(value: Any) -> Any:
    """Convert a cell, or nested tuples of cells, to JSON."""
    if isinstance(value, tuple):
        return [_to_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _end(value: float) -> float | None:
    """Return the end of an interval as JSON; None if there is none."""
    return value if math.isfinite(value) else None


def _decision_to_json(decision: Decision) -> dict[str, Any]:
    claim = CLAIMS[decision.claim]
    return {
        "claim": decision.claim,
        "sources": claim.sources,
        "section": claim.section,
        "text": claim.text,
        "verdict": decision.verdict,
        "expected": decision.expected,
        "condition": decision.condition,
        "reason": decision.reason,
        "measurements": [
            {
                "name": one.name,
                "value": _to_json(one.value),
                "low": _end(one.low),
                "high": _end(one.high),
                "interval": one.interval,
                "is_inside": one.is_inside,
            }
            for one in decision.measurements
        ],
    }


def _html(finding: Table | Figure | Decision) -> str:
    if isinstance(finding, Figure):
        image, caption = base64.b64encode(finding.png()).decode(), escape(finding.caption)
        tag = f'<img src="data:image/png;base64,{image}" alt="{caption}" style="max-width: 100%">'
        return f'<figure style="margin: 1em 0">{tag}<figcaption><i>{caption}</i></figcaption></figure>'
    if isinstance(finding, Table):
        note = f"<p>{escape(finding.note)}</p>" if finding.note else ""
        return f"<p><b>{escape(finding.title)}</b></p>{_html_table(finding)}{note}"
    rows = tuple((one.name, one.value, one.interval) for one in finding.measurements)
    numbers = Table(title="", columns=("measurement", "value", "expected"), rows=rows)
    verdict, condition = str(finding.verdict).capitalize(), escape(finding.text.removeprefix(finding.verdict))
    return (
        f'<div style="border-left: 4px solid {COLOURS[finding.verdict]}; padding: 0 1em; margin: 1.5em 0">'
        f"<p><b>Claim {finding.claim}.</b> {escape(CLAIMS[finding.claim].text)}</p>"
        f"<p><b>{verdict}</b>{condition}. {escape(finding.reason)}</p>{_html_table(numbers)}</div>"
    )


def _html_table(table: Table) -> str:
    """Return an HTML table with explicit alignment, because notebooks align all cells to the right."""
    sides = ["right" if is_number else "left" for is_number in table.is_numeric]
    rows = [_html_row("th", table.columns, sides), *(_html_row("td", row, sides) for row in table.text_rows())]
    return f'<table style="margin: 0 0 1em 0">{"".join(rows)}</table>'


def _html_row(kind: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    aligned = zip(cells, sides, strict=True)
    return (
        "<tr>"
        + "".join(f'<{kind} style="text-align: {side}">{escape(cell)}</{kind}>' for cell, side in aligned)
        + "</tr>"
    )
