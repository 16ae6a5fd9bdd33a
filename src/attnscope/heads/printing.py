"""Prints a head table with as many columns as fit.

In: columns of names and numbers. Out: rich renderables. Does not know: scores, labels. Memory: the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rich.table import Table
from rich.text import Text

TEXT_COLUMNS = ("layer", "labels")
REQUIRED_COLUMNS = ("layer", "head", "labels")


def render_table(columns: Mapping[str, Sequence[Any]], width: int) -> Iterator[Table | Text]:
    """Yield a table of the columns that fit into a width in characters, and a line that names the others.

    Cells are printed without markup, because layer names are untrusted.
    """
    formatted = {name: _format_column(column) for name, column in columns.items()}
    fitting = _fit_columns(formatted, width)
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in fitting:
        table.add_column(Text(_wrap_header(name)), justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
    for row in zip(*(formatted[name] for name in fitting), strict=True):
        table.add_row(*map(Text, row))
    yield table
    if hidden := [name for name in formatted if name not in fitting]:
        yield Text(f"no room for {', '.join(hidden)}", style="dim")


def shorten_names(layers: Sequence[str]) -> dict[str, str]:
    """Map layer names to short names, without the words that all of them begin and end with.

    >>> shorten_names(["model.layers.0.self_attn", "model.layers.11.self_attn"])
    {'model.layers.0.self_attn': '0', 'model.layers.11.self_attn': '11'}
    """
    names = list(dict.fromkeys(layers))
    words = [name.split(".") for name in names]
    shortest = min(map(len, words), default=0)
    start = min(_common_prefix(words), shortest - 1)  # at least one word of each name is left
    stop = min(_common_prefix([some[start:][::-1] for some in words]), shortest - start - 1)
    short = (".".join(some[start : len(some) - stop]) for some in words)
    return dict(zip(names, names if len(names) == 1 else short, strict=True))


def _common_prefix(rows: Sequence[Sequence[str]]) -> int:
    """Return how many words all rows begin with."""
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*rows, strict=False)))


def _fit_columns(columns: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Select the columns that fit into a width: first names and labels, then scores in order."""
    widths = {name: max(map(len, [*_wrap_header(name).split("\n"), *columns[name]])) + 1 for name in columns}
    fitting = {name for name in columns if name in REQUIRED_COLUMNS}
    left = width - sum(widths[name] for name in fitting)
    for name in columns:
        if name not in fitting and widths[name] <= left:
            left -= widths[name]
            fitting.add(name)
    return [name for name in columns if name in fitting]


def _wrap_header(name: str) -> str:
    """Put each word of a name on its own line, which keeps the column narrow."""
    return name.replace("_", "\n")


def _format_column(column: Sequence[Any]) -> list[str]:
    """Format the cells of a column with decimals by its largest number; NaN is empty."""
    largest = max((abs(cell) for cell in column if isinstance(cell, float) and cell == cell), default=0.0)
    decimals = 2 if largest < 10 else 1 if largest < 100 else 0
    return [
        str(cell) if not isinstance(cell, float) else "" if cell != cell else f"{cell:z,.{decimals}f}"
        for cell in column
    ]
