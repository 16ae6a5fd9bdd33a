"""`Result`: what came of an experiment: tables, figures and decisions, as text, as HTML, as JSON and as files.

In: findings in their order. Out: what is printed, shown in a notebook, or written to a folder.
Does not know: how anything was found. Memory: the findings.
"""

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

DOTS_AN_INCH = 150
COLOURS = {
    Verdict.HOLDS: "#009e73",
    Verdict.HOLDS_WHEN: "#e69f00",
    Verdict.DOES_NOT_HOLD: "#d55e00",
    Verdict.NOT_SHOWN: "#888888",
    Verdict.UNSETTLED: "#888888",
}
"""Beside the words of a verdict; they differ for the colour-blind too."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, columns, rows of text and numbers, and what has to be said about them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""

    def lines(self) -> Iterator[tuple[str, ...]]:
        """The rows as text."""
        yield from (tuple(shown(cell) for cell in row) for row in self.rows)

    @property
    def are_numbers(self) -> tuple[bool, ...]:
        """Of each column, whether it holds numbers alone, which stand best at its right side."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.columns)
        return tuple(
            all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in column) for column in columns
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture, as `attnscope.figures` draws them, with the name of its file and a caption."""

    name: str
    drawing: Any
    caption: str

    def png(self) -> bytes:
        """The picture as a PNG file."""
        file = BytesIO()
        self.drawing.savefig(file, format="png", dpi=DOTS_AN_INCH)
        return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one run of an experiment."""

    name: str
    question: str
    size: str
    seed: int
    findings: list[Table | Figure | Decision] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    """The fingerprints of the trained models that were measured."""

    @property
    def tables(self) -> list[Table]:
        """The tables, in their order."""
        return [finding for finding in self.findings if isinstance(finding, Table)]

    @property
    def figures(self) -> list[Figure]:
        """The figures, in their order."""
        return [finding for finding in self.findings if isinstance(finding, Figure)]

    @property
    def decisions(self) -> list[Decision]:
        """The decided claims, in the order in which they were decided."""
        return [finding for finding in self.findings if isinstance(finding, Decision)]

    @property
    def unsettled(self) -> list[Decision]:
        """Claims whose numbers left their margins."""
        return [decision for decision in self.decisions if decision.verdict is Verdict.UNSETTLED]

    def part(self, first: int) -> Result:
        """The same from the finding of this number on."""
        return replace(self, findings=self.findings[first:])

    def to_json(self) -> dict[str, Any]:
        """All but the pictures, for machines; NaN and infinity, which JSON does not have, are words in it."""
        return {
            "attnscope": __version__,
            "lab": self.name,
            "question": self.question,
            "size": self.size,
            "seed": self.seed,
            "models": self.models,
            "claims": [_decided(decision) for decision in self.decisions],
            "tables": [
                {"title": table.title, "columns": table.columns, "rows": _plain(table.rows), "note": table.note}
                for table in self.tables
            ],
            "figures": [{"name": figure.name, "caption": figure.caption} for figure in self.figures],
        }

    def write(self, folder: Path) -> None:
        """Write `result.json`, and each figure as PNG and SVG."""
        from attnscope.figures.drawing import to_svg

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(
            json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
        for figure in self.figures:
            (folder / f"{figure.name}.png").write_bytes(figure.png())
            (folder / f"{figure.name}.svg").write_bytes(to_svg(figure.drawing))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return "\n".join(_html(finding) for finding in self.findings)


def shown(cell: Any) -> str:
    """A cell of a table as text.

    >>> shown(0.123456), shown(66048), shown(1e-9), shown(2359296.0), shown("row")
    ('0.1235', '66,048', '1e-09', '2,359,296', 'row')
    """
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if 1000 <= abs(cell) < 1e9 else f"{cell:.4g}"
    return str(cell)


def _plain(value: Any) -> Any:
    """What JSON can say for a cell, a number or rows of them."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _decided(decision: Decision) -> dict[str, Any]:
    claim = CLAIMS[decision.claim]
    return {
        "claim": decision.claim,
        "sources": claim.sources,
        "text": claim.text,
        "verdict": decision.verdict,
        "expected": decision.expected,
        "when": decision.when,
        "because": decision.because,
        "numbers": [
            {"name": number.name, "value": _plain(number.value), "margin": number.margin, "inside": number.is_inside}
            for number in decision.numbers
        ],
    }


def _html(finding: Table | Figure | Decision) -> str:
    if isinstance(finding, Figure):
        picture, caption = base64.b64encode(finding.png()).decode(), escape(finding.caption)
        image = f'<img src="data:image/png;base64,{picture}" alt="{caption}" style="max-width: 100%">'
        return f'<figure style="margin: 1em 0">{image}<figcaption><i>{caption}</i></figcaption></figure>'
    if isinstance(finding, Table):
        note = f"<p>{escape(finding.note)}</p>" if finding.note else ""
        return f"<p><b>{escape(finding.title)}</b></p>{_html_table(finding)}{note}"
    rows = tuple((number.name, number.value, number.margin) for number in finding.numbers)
    numbers = Table(title="", columns=("what decides", "measured", "margin"), rows=rows)
    verdict, when = str(finding.verdict).capitalize(), escape(finding.words.removeprefix(finding.verdict))
    return (
        f'<div style="border-left: 4px solid {COLOURS[finding.verdict]}; padding: 0 1em; margin: 1.5em 0">'
        f"<p><b>Claim {finding.claim}.</b> {escape(CLAIMS[finding.claim].text)}</p>"
        f"<p><b>{verdict}</b>{when}. {escape(finding.because)}</p>{_html_table(numbers)}</div>"
    )


def _html_table(table: Table) -> str:
    """Sides are said for each cell, since a notebook would put words at the right side too."""
    sides = ["right" if is_number else "left" for is_number in table.are_numbers]
    rows = [_html_row("th", table.columns, sides), *(_html_row("td", row, sides) for row in table.lines())]
    return f'<table style="margin: 0 0 1em 0">{"".join(rows)}</table>'


def _html_row(kind: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    said = zip(cells, sides, strict=True)
    return (
        "<tr>" + "".join(f'<{kind} style="text-align: {side}">{escape(cell)}</{kind}>' for cell, side in said) + "</tr>"
    )
