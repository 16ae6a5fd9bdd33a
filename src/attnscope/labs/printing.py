"""Results for a terminal, and as plain text where they are piped.

In: a `Result`, or a table, and a console of rich. Out: what is written to it: tables and coloured verdicts on a
terminal, lines with tabs elsewhere, in which nothing is wrapped or rounded to be looked at.
Does not know: how anything was found. Memory: the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from attnscope.labs.claims import CLAIMS
from attnscope.labs.result import Figure, Result, Table, shown
from attnscope.labs.verdicts import Decision, Number, Verdict

STYLES = {
    Verdict.HOLDS: "bold green",
    Verdict.HOLDS_WHEN: "bold yellow",
    Verdict.DOES_NOT_HOLD: "bold red",
    Verdict.NOT_SHOWN: "bold magenta",
    Verdict.UNSETTLED: "bold reverse red",
}


def show(result: Result, console: Console) -> None:
    """Write what came of an experiment, in its order."""
    if not console.is_terminal:
        console.file.write("\n".join(plain_lines(result)) + "\n")
        return
    console.print(Text(result.question, "bold"))
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
    """Write a table; a column of numbers stands to the right, and a verdict has its colour."""
    if not console.is_terminal:
        console.file.write("\n".join(_plain_table(table)) + "\n")
        return
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name, *cells in zip(table.columns, *table.rows, strict=True):
        are_numbers = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        grid.add_column(Text(name), justify="right" if are_numbers else "left", overflow="fold")
    for cells in table.lines():
        grid.add_row(*(Text(cell, _style(name, cell)) for name, cell in zip(table.columns, cells, strict=True)))
    if table.title:
        console.print(Text(table.title, "bold"))
    console.print(grid)
    if table.note:
        console.print(Text(table.note, "dim"))


def plain_lines(result: Result) -> Iterator[str]:
    r"""A result as lines for other programs: what a line is stands first in it, where it is no row of a table.

    >>> result = Result(name="masks", question="What does a mask hide?", size="small", seed=0)
    >>> result.findings.append(Table(title="Leaks", columns=("dtype", "leak"), rows=(("float16", 0.5),)))
    >>> [line.replace("\t", " | ") for line in plain_lines(result)]
    ['lab | masks | small | 0 | What does a mask hide?', '', 'table | Leaks', 'dtype | leak', 'float16 | 0.5']
    """
    yield _line("lab", result.name, result.size, result.seed, result.question)
    for finding in result.findings:
        yield ""
        if isinstance(finding, Table):
            yield from _plain_table(finding)
        elif isinstance(finding, Figure):
            yield _line("figure", finding.name, finding.caption)
        else:
            yield _line("claim", finding.claim, finding.words, CLAIMS[finding.claim].text, finding.because)
            for number in finding.numbers:
                inside = "inside" if number.is_inside else "outside"
                yield _line("number", finding.claim, number.name, number.value, inside, number.margin)


def _show_decision(decision: Decision, console: Console) -> None:
    verdict = decision.verdict
    console.print(
        Text.assemble(
            (f"Claim {decision.claim} ", "bold"),
            (f"{verdict.value}", STYLES[verdict]),
            f" {decision.when}" if verdict is Verdict.HOLDS_WHEN else "",
        )
    )
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_row(Text("said", "dim"), Text(CLAIMS[decision.claim].text))
    grid.add_row(Text("found", "dim"), Text(decision.because))
    console.print(Padding(grid, (0, 0, 0, 2)))
    numbers = Grid.grid(padding=(0, 2, 0, 0))
    numbers.add_column(justify="right")
    for number in decision.numbers:
        numbers.add_row(*_number_cells(number))
    console.print(Padding(numbers, (0, 0, 0, 9)))


def _number_cells(number: Number) -> tuple[Text, Text, Text]:
    """A number, its margin and its name; one that left its margin can be told without colours."""
    inside = number.is_inside
    margin = Text(f"{'' if inside else 'not '}{number.margin}", "dim" if inside else STYLES[Verdict.UNSETTLED])
    return Text(shown(number.value), "" if inside else STYLES[Verdict.UNSETTLED]), margin, Text(number.name, "dim")


def _style(column: str, cell: str) -> str:
    """The colour of a cell: that of a verdict, which may go on with its condition, in the column of verdicts."""
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
    """A cell on one line, without tabs; numbers in seven digits, as fp32 has them, and without separators."""
    text = shown(cell) if isinstance(cell, bool) else f"{cell:.7g}" if isinstance(cell, float) else str(cell)
    return " ".join(text.split())
