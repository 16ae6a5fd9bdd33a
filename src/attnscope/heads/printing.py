"""A table of heads as text: as many columns as there is room for.

In: columns of names and numbers. Out: what rich prints. Does not know: scores, labels. Memory: the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rich.table import Table
from rich.text import Text

WORDS = ("layer", "labels")
ALWAYS = ("layer", "head", "labels")


def printed(cells: Mapping[str, Sequence[Any]], room: int) -> Iterator[Table | Text]:
    """The columns that fit into so many characters, and a line that names the others.

    What stands in cells is shown as it is, brackets and all: names of layers are somebody else's.
    """
    shown = {name: _shown(column) for name, column in cells.items()}
    fitting = _fitting(shown, room)
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in fitting:
        table.add_column(Text(_headed(name)), justify="left" if name in WORDS else "right", no_wrap=True)
    for row in zip(*(shown[name] for name in fitting), strict=True):
        table.add_row(*map(Text, row))
    yield table
    if hidden := [name for name in shown if name not in fitting]:
        yield Text(f"no room for {', '.join(hidden)}", style="dim")


def short_names(layers: Sequence[str]) -> dict[str, str]:
    """Names of layers without the words that all of them begin and end with, by their whole names.

    >>> short_names(["model.layers.0.self_attn", "model.layers.11.self_attn"])
    {'model.layers.0.self_attn': '0', 'model.layers.11.self_attn': '11'}
    """
    names = list(dict.fromkeys(layers))
    words = [name.split(".") for name in names]
    shortest = min(map(len, words), default=0)
    start = min(_in_common(words), shortest - 1)  # something is left of every name
    stop = min(_in_common([some[start:][::-1] for some in words]), shortest - start - 1)
    kept = (".".join(some[start : len(some) - stop]) for some in words)
    return dict(zip(names, names if len(names) == 1 else kept, strict=True))


def _in_common(rows: Sequence[Sequence[str]]) -> int:
    """How many words all rows begin with."""
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*rows, strict=False)))


def _fitting(cells: Mapping[str, Sequence[str]], room: int) -> list[str]:
    """The columns that fit into a width: names and labels, and then scores in their order."""
    wide = {name: max(map(len, [*_headed(name).split("\n"), *cells[name]])) + 1 for name in cells}
    fitting = {name for name in cells if name in ALWAYS}
    left = room - sum(wide[name] for name in fitting)
    for name in cells:
        if name not in fitting and wide[name] <= left:
            left -= wide[name]
            fitting.add(name)
    return [name for name in cells if name in fitting]


def _headed(name: str) -> str:
    """Words below each other, so that the column may be narrow."""
    return name.replace("_", "\n")


def _shown(column: Sequence[Any]) -> list[str]:
    """The cells of a column, with as many decimals as its largest number leaves room for; NaN is nothing."""
    largest = max((abs(cell) for cell in column if isinstance(cell, float) and cell == cell), default=0.0)
    decimals = 2 if largest < 10 else 1 if largest < 100 else 0
    return [
        str(cell) if not isinstance(cell, float) else "" if cell != cell else f"{cell:z,.{decimals}f}"
        for cell in column
    ]
