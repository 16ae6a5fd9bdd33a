"""`HeadTable`: a row of numbers for each head, to be sorted, printed and exported.

In: layers, heads and columns of numbers, or a CSV file of them. Out: text for a terminal, CSV, Parquet, a pandas data
frame, or the heads of some rows in the form that `ablate` takes.
Does not know: what the numbers mean. Memory: the numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from torch import Tensor

from attnscope.errors import CheckpointError, SettingError, unknown
from attnscope.extras import import_extra
from attnscope.heads.printing import printed, short_names
from attnscope.models.json_files import read_text

SHOWN = 20  # rows at a prompt


@dataclass(frozen=True, eq=False, repr=False)
class HeadTable:
    """The layer and number of each head, its scores by name, and its labels, the most telling first.

    It prints itself, with as many columns as there is room for; exports have all of them.

    >>> table = HeadTable(("a", "a"), (0, 1), {"entropy": torch.tensor([0.5, 2.0])})
    >>> table.top("entropy", 1).chosen
    {'a': [1]}
    """

    layers: tuple[str, ...]
    heads: tuple[int, ...]
    columns: dict[str, Tensor]
    labels: tuple[tuple[str, ...], ...] | None = None
    short: dict[str, str] = field(default_factory=dict)
    """Layers as they are printed; some rows of a table print them as all of them do."""

    def __post_init__(self) -> None:
        if not self.short:
            self.short.update(short_names(self.layers))

    @staticmethod
    def from_csv(file: str | Path | TextIO) -> HeadTable:
        r"""Read back what `to_csv` wrote, numbers as float64; any other file is refused by its name and line.

        >>> HeadTable.from_csv(io.StringIO("layer,head,sink,labels\na,0,0.9,local+sink\n")).labels
        (('local', 'sink'),)
        """
        if isinstance(file, str | Path):
            return _table_in(read_text(Path(file)), str(file))
        return _table_in(file.read(), str(getattr(file, "name", "the table")))

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, score: str) -> Tensor:
        """A score of all heads."""
        if score not in self.columns:
            raise SettingError(unknown("score", score, self.columns))
        return self.columns[score]

    @property
    def chosen(self) -> dict[str, list[int]]:
        """The heads of each layer, as `ablate` and `record` take them."""
        found: dict[str, list[int]] = {}
        for layer, head in zip(self.layers, self.heads, strict=True):
            heads = found.setdefault(layer.partition("#")[0], [])  # name#2 is the same module, called again
            if head not in heads:
                heads.append(head)
        return found

    def name_of(self, layer: str, head: int) -> str:
        """A head as it is called in print, like 18.6: its layer and its number."""
        return f"{self.short[layer]}.{head}"

    @property
    def names(self) -> list[str]:
        """Every head as it is called in print."""
        return [self.name_of(layer, head) for layer, head in zip(self.layers, self.heads, strict=True)]

    def row(self, layer: str, head: int) -> dict[str, float]:
        """All scores of one head."""
        places = list(zip(self.layers, self.heads, strict=True))
        if (layer, head) not in places:
            raise SettingError(
                f"head {head} of {layer} is not in this table; its layers are {', '.join(dict.fromkeys(self.layers))}"
            )
        at = places.index((layer, head))
        return {name: float(column[at]) for name, column in self.columns.items()}

    def top(self, score: str, count: int | None = None) -> HeadTable:
        """The heads with the highest of a score, highest first; those without it are left out."""
        column = self[score]
        order = column.nan_to_num(-torch.inf).argsort(descending=True, stable=True)
        known = order[~column[order].isnan()]
        return self.at(known.tolist() if count is None else known[:count].tolist())

    def with_label(self, label: str) -> HeadTable:
        """The heads that have a label."""
        if self.labels is None:
            raise SettingError(f"{label!r} was asked for of a table without labels; labelled(table) gives them")
        return self.at([at for at, some in enumerate(self.labels) if label in some])

    def at(self, rows: Sequence[int]) -> HeadTable:
        """Some rows, in this order."""
        return HeadTable(
            tuple(self.layers[row] for row in rows),
            tuple(self.heads[row] for row in rows),
            {name: column[list(rows)] for name, column in self.columns.items()},
            None if self.labels is None else tuple(self.labels[row] for row in rows),
            self.short,
        )

    def leading(self, *scores: str) -> HeadTable:
        """The same table with some scores before all others."""
        first = {score: self[score] for score in scores}
        return replace(self, columns={**first, **self.columns})

    def joined(self, other: HeadTable) -> HeadTable:
        """The same heads with the columns of another table beside their own."""
        places = {head: at for at, head in enumerate(zip(other.layers, other.heads, strict=True))}
        try:
            order = [places[head] for head in zip(self.layers, self.heads, strict=True)]
        except KeyError as missing:
            layer, head = missing.args[0]
            raise SettingError(
                f"joined: head {head} of {layer} is in the one table and not in the other; make both from the same "
                "model, with the same layers and heads"
            ) from None
        more = {name: column[order] for name, column in other.columns.items()}
        return replace(self, columns={**self.columns, **more})

    def to_csv(self, file: str | Path | TextIO) -> None:
        """Write all rows as CSV, with a first row of names."""
        if isinstance(file, str | Path):
            with Path(file).open("w", newline="", encoding="utf-8") as opened:
                self.to_csv(opened)
            return
        writer = csv.writer(file, lineterminator="\n")
        cells = self.cells()
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))

    def to_parquet(self, file: str | Path) -> None:
        """Write all rows as a Parquet file."""
        arrow = import_extra("pyarrow")
        import_extra("pyarrow.parquet").write_table(arrow.table(self.cells()), str(file))

    def to_pandas(self) -> Any:
        """All rows as a pandas data frame."""
        return import_extra("pandas").DataFrame(self.cells())

    def cells(self) -> dict[str, list[Any]]:
        """Every column by its name: layer, head, scores, and labels joined by +."""
        named = {"layer": list(self.layers), "head": list(self.heads)}
        numbers = {name: column.tolist() for name, column in self.columns.items()}
        labels = {} if self.labels is None else {"labels": ["+".join(some) for some in self.labels]}
        return {**named, **numbers, **labels}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many columns as there is room for."""
        cells = {**self.cells(), "layer": [self.short[layer] for layer in self.layers]}
        yield from printed(cells, options.max_width)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        """The first rows, as a notebook or a prompt shows them."""
        more = f"\n{SHOWN} of {len(self)} heads" if len(self) > SHOWN else ""
        return self.at(range(min(SHOWN, len(self)))).text() + more

    def text(self, width: int = 200) -> str:
        """What is printed into lines of so many characters, without colours."""
        console = Console(width=width, color_system=None, force_terminal=False)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _table_in(text: str, name: str) -> HeadTable:
    """The table that a text holds; `name` is where it came from."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    heads: dict[tuple[str, int], None] = {}
    numbers: list[list[float]] = []
    labels: list[tuple[str, ...]] = []
    try:
        header = next(lines, [])
        if header[:2] != ["layer", "head"] or len(set(header)) < len(header) or not all(map(str.isprintable, header)):
            raise ValueError("the names of columns are layer, head, and then scores, each once")
        with_labels = header[-1] == "labels"
        for row in lines:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} cells, and there are {len(header)} columns")
            head = row[0], _head_number(row[1])
            if not row[0].isprintable():
                raise ValueError(f"{row[0]!r} is no name of a layer")
            if head in heads:
                raise ValueError(f"head {head[1]} of {head[0]} for the second time")
            heads[head] = None
            numbers.append([float(cell) for cell in row[2 : len(row) - with_labels]])
            labels.append(tuple(row[-1].split("+")) if row[-1] else ())
        if not text.endswith("\n"):  # a number that was cut off is still a number
            raise ValueError("it ends in the middle of this line")
    except (ValueError, csv.Error) as error:
        where = f"{name}, line {max(lines.line_num, 1)}"
        raise CheckpointError(
            f"{where}: no table of heads as HeadTable.to_csv writes it: {str(error)[:200]}"
        ) from error
    scores = header[2 : len(header) - with_labels]
    columns = torch.tensor(numbers, dtype=torch.float64).reshape(len(heads), len(scores)).unbind(1)
    return HeadTable(
        tuple(layer for layer, _ in heads),
        tuple(head for _, head in heads),
        dict(zip(scores, columns, strict=True)),
        tuple(labels) if with_labels else None,
    )


def _head_number(cell: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
        raise ValueError(f"{cell[:50]!r} is no number of a head")
    return int(cell)
