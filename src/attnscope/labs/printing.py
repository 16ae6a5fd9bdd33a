"""Print results: tables and coloured verdicts on a terminal, tab-separated lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from attnscope.labs.claims import CLAIMS
from attnscope.labs.result import Figure, Result, Table, format_cell
from attnscope.labs.verdicts import Decision, Measurement, Verdict

STYLES = {
    Verdict.HOLDS: "bold green",
    Verdict.HOLDS_WHEN: "bold yellow",
    Verdict.DOES_NOT_HOLD: "bold red",
    Verdict.NOT_SHOWN: "bold magenta",
    Verdict.INCONCLUSIVE: "bold reverse red",
}


def show(result: Result, console: Console) -> None:
    """Print the result of a lab."""
    if not console.is_terminal:
        console.file.write("\n".join(plain_lines(result)) + "\n")
        return
    console.print(Text(result.title, "bold"))
    console.print(Text(f"lab {result.name}, {result.size} size, seed {result.seed}", "dim"))
    for finding in result.findings:
        console.print()
        if isinstance(finding, Table):
            show_table(finding, console)
        elif isinstance(finding, Figure):
            console.print(Text.assemble((f"figure {finding.name}: ", "dim"), finding.caption))
        else:
            _show_decision(finding, console)
    if result.decisions:
        verdicts = [(f"{one.claim} ", one.verdict.value, STYLES[one.verdict]) for one in result.decisions]
        console.print()
        console.print(Text(", ").join(Text.assemble(claim, (word, style)) for claim, word, style in verdicts))


def show_table(table: Table, console: Console) -> None:
    """Print a table, with numbers aligned to the right and verdicts coloured."""
    if not console.is_terminal:
        console.file.write("\n".join(_plain_table(table)) + "\n")
        return
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name, *cells in zip(table.columns, *table.rows, strict=True):
        is_numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        grid.add_column(Text(name), justify="right" if is_numeric else "left", overflow="fold")
    for cells in table.text_rows():
        grid.add_row(*(Text(cell, _style(name, cell)) for name, cell in zip(table.columns, cells, strict=True)))
    if table.title:
        console.print(Text(table.title, "bold"))
    console.print(grid)
    if table.note:
        console.print(Text(table.note, "dim"))


def plain_lines(result: Result) -> Iterator[str]:
    r"""Yield a result as tab-separated lines for other programs; except in rows of tables, the first cell is the kind.

    >>> result = Result(name="masks", title="Attention masks", size="small", seed=0)
    >>> result.findings.append(Table(title="Leaks", columns=("dtype", "leak"), rows=(("float16", 0.5),)))
    >>> [line.replace("\t", " | ") for line in plain_lines(result)]
    ['lab | masks | small | 0 | Attention masks', '', 'table | Leaks', 'dtype | leak', 'float16 | 0.5']
    """
    yield _line("lab", result.name, result.size, result.seed, result.title)
    for finding in result.findings:
        yield ""
        if isinstance(finding, Table):
            yield from _plain_table(finding)
        elif isinstance(finding, Figure):
            yield _line("figure", finding.name, finding.caption)
        else:
            yield _line("claim", finding.claim, finding.text, CLAIMS[finding.claim].text, finding.reason)
            for one in finding.measurements:
                inside = "inside" if one.is_inside else "outside"
                yield _line("measurement", finding.claim, one.name, one.value, inside, one.interval)


def _show_decision(decision: Decision, console: Console) -> None:
    verdict = decision.verdict
    console.print(
        Text.assemble(
            (f"Claim {decision.claim} ", "bold"),
            (f"{verdict.value}", STYLES[verdict]),
            f" {decision.condition}" if verdict is Verdict.HOLDS_WHEN else "",
        )
    )
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_row(Text("claim", "dim"), Text(CLAIMS[decision.claim].text))
    grid.add_row(Text("found", "dim"), Text(decision.reason))
    console.print(Padding(grid, (0, 0, 0, 2)))
    measurements = Grid.grid(padding=(0, 2, 0, 0))
    measurements.add_column(justify="right")
    for measurement in decision.measurements:
        measurements.add_row(*_measurement_cells(measurement))
    console.print(Padding(measurements, (0, 0, 0, 9)))


def _measurement_cells(measurement: Measurement) -> tuple[Text, Text, Text]:
    """Return value, interval and name; 'not' marks a value outside its interval without colours."""
    inside = measurement.is_inside
    interval = Text(
        f"{'' if inside else 'not '}{measurement.interval}", "dim" if inside else STYLES[Verdict.INCONCLUSIVE]
    )
    return (
        Text(format_cell(measurement.value), "" if inside else STYLES[Verdict.INCONCLUSIVE]),
        interval,
        Text(measurement.name, "dim"),
    )


def _style(column: str, cell: str) -> str:
    """Return the style of a cell: that of its verdict in a column of verdicts, else none."""
    found = [verdict for verdict in STYLES if cell.startswith(verdict)] if column == "verdict" else []
    return STYLES[max(found, key=len)] if found else ""


def _plain_table(table: Table) -> Iterator[str]:
    if table.title:
        yield _line("table", table.title)
    yield _line(*table.columns)
    yield from (_line(*row) for row in table.rows)
    if table.note:
        yield _line("note", table.note)


def _line(*cells: Any) -> str:
    return "\t".join(map(_plain, cells))


def _plain(cell: Any) -> str:
    """Format a cell without tabs and line breaks; numbers with seven digits and without separators."""
    text = format_cell(cell) if isinstance(cell, bool) else f"{cell:.7g}" if isinstance(cell, float) else str(cell)
    return " ".join(text.split())
