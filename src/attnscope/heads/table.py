"""`HeadTable`: scores of attention heads, one row per head, to sort, print and export.

In: layers, heads and columns of numbers, or a CSV file. Out: text for a terminal, CSV, Parquet, a pandas data frame, or
the heads in the form that `ablate` takes.
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
from attnscope.heads.printing import render_table, shorten_names
from attnscope.models.json_files import read_text

MAX_REPR_ROWS = 20


@dataclass(frozen=True, eq=False, repr=False)
class HeadTable:
    """Scores and labels of attention heads, one row per head.

    Printing shows as many columns as fit into the terminal; exports have all of them.

    Attributes:
        layers: The layer name of each head.
        heads: The index of each head in its layer.
        columns: Scores by name, (heads,) each.
        labels: The labels of each head, the most specific first, or None.
        short_names: Layer names as printed. Tables of selected rows keep those of the whole table.

    >>> table = HeadTable(("a", "a"), (0, 1), {"entropy": torch.tensor([0.5, 2.0])})
    >>> table.top("entropy", 1).heads_by_layer
    {'a': [1]}
    """

    layers: tuple[str, ...]
    heads: tuple[int, ...]
    columns: dict[str, Tensor]
    labels: tuple[tuple[str, ...], ...] | None = None
    short_names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.short_names:
            self.short_names.update(shorten_names(self.layers))

    @staticmethod
    def from_csv(file: str | Path | TextIO) -> HeadTable:
        r"""Read a table that `to_csv` wrote, with numbers as float64.

        Args:
            file: A path, or an open text file.

        Returns:
            The table.

        Raises:
            CheckpointError: The file is not such a table; the message has its name and line.

        >>> HeadTable.from_csv(io.StringIO("layer,head,sink,labels\na,0,0.9,local+sink\n")).labels
        (('local', 'sink'),)
        """
        if isinstance(file, str | Path):
            return _parse_csv(read_text(Path(file)), str(file))
        return _parse_csv(file.read(), str(getattr(file, "name", "the table")))

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, score: str) -> Tensor:
        """Return a score of all heads, (heads,)."""
        if score not in self.columns:
            raise SettingError(unknown("score", score, self.columns))
        return self.columns[score]

    @property
    def heads_by_layer(self) -> dict[str, list[int]]:
        """The heads of each layer, in the form that `ablate` and `record` take."""
        found: dict[str, list[int]] = {}
        for layer, head in zip(self.layers, self.heads, strict=True):
            heads = found.setdefault(layer.partition("#")[0], [])  # name#2 is the same module, called again
            if head not in heads:
                heads.append(head)
        return found

    def head_name(self, layer: str, head: int) -> str:
        """Return the printed name of a head, such as 18.6: its layer and its index.

        Args:
            layer: The name of a layer.
            head: The index of a head.

        Returns:
            The short name.
        """
        return f"{self.short_names[layer]}.{head}"

    @property
    def head_names(self) -> list[str]:
        """The printed names of all heads."""
        return [self.head_name(layer, head) for layer, head in zip(self.layers, self.heads, strict=True)]

    def head_scores(self, layer: str, head: int) -> dict[str, float]:
        """Return all scores of one head by name.

        Args:
            layer: The name of a layer.
            head: The index of a head.

        Returns:
            Its scores by name.

        Raises:
            SettingError: The head is not in this table.
        """
        keys = list(zip(self.layers, self.heads, strict=True))
        if (layer, head) not in keys:
            raise SettingError(
                f"head {head} of {layer} is not in this table; its layers are {', '.join(dict.fromkeys(self.layers))}"
            )
        at = keys.index((layer, head))
        return {name: float(column[at]) for name, column in self.columns.items()}

    def top(self, score: str, count: int | None = None) -> HeadTable:
        """Return the heads with the highest scores, highest first.

        Args:
            score: The name of a score. Heads where it is NaN are left out.
            count: How many heads to return; all by default.
        """
        column = self[score]
        order = column.nan_to_num(-torch.inf).argsort(descending=True, stable=True)
        known = order[~column[order].isnan()]
        return self.rows(known.tolist() if count is None else known[:count].tolist())

    def with_label(self, label: str) -> HeadTable:
        """Return the heads that have a label.

        Args:
            label: The name of a label.

        Returns:
            The rows of these heads.

        Raises:
            SettingError: The table has no labels.
        """
        if self.labels is None:
            raise SettingError(f"expected a table with labels to find {label!r}, got one without; use assign_labels")
        return self.rows([at for at, some in enumerate(self.labels) if label in some])

    def rows(self, indices: Sequence[int]) -> HeadTable:
        """Return some rows, in this order.

        Args:
            indices: Which rows.

        Returns:
            The table of these rows.
        """
        return HeadTable(
            tuple(self.layers[row] for row in indices),
            tuple(self.heads[row] for row in indices),
            {name: column[list(indices)] for name, column in self.columns.items()},
            None if self.labels is None else tuple(self.labels[row] for row in indices),
            self.short_names,
        )

    def with_first_columns(self, *scores: str) -> HeadTable:
        """Return the same table with some scores before all others.

        Args:
            *scores: The names of scores.

        Returns:
            The table with other columns first.
        """
        first = {score: self[score] for score in scores}
        return replace(self, columns={**first, **self.columns})

    def join(self, other: HeadTable) -> HeadTable:
        """Return the same heads with the columns of another table added.

        Args:
            other: A table that has at least these heads.

        Returns:
            The wider table.

        Raises:
            SettingError: A head of this table is not in the other one.
        """
        rows = {head: at for at, head in enumerate(zip(other.layers, other.heads, strict=True))}
        try:
            order = [rows[head] for head in zip(self.layers, self.heads, strict=True)]
        except KeyError as missing:
            layer, head = missing.args[0]
            raise SettingError(
                f"join: head {head} of {layer} is not in the other table; make both from the same model, with the same "
                "layers and heads"
            ) from None
        more = {name: column[order] for name, column in other.columns.items()}
        return replace(self, columns={**self.columns, **more})

    def to_csv(self, file: str | Path | TextIO) -> None:
        """Write all rows as CSV, with a header row.

        Args:
            file: A path, or an open text file.
        """
        if isinstance(file, str | Path):
            with Path(file).open("w", newline="", encoding="utf-8") as opened:
                self.to_csv(opened)
            return
        writer = csv.writer(file, lineterminator="\n")
        columns = self.to_dict()
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))

    def to_parquet(self, file: str | Path) -> None:
        """Write all rows as a Parquet file.

        Args:
            file: A path.
        """
        arrow = import_extra("pyarrow")
        import_extra("pyarrow.parquet").write_table(arrow.table(self.to_dict()), str(file))

    def to_pandas(self) -> Any:
        """Return all rows as a pandas data frame."""
        return import_extra("pandas").DataFrame(self.to_dict())

    def to_dict(self) -> dict[str, list[Any]]:
        """Return all columns by name: layer, head, scores, and labels joined by +."""
        names = {"layer": list(self.layers), "head": list(self.heads)}
        scores = {name: column.tolist() for name, column in self.columns.items()}
        labels = {} if self.labels is None else {"labels": ["+".join(some) for some in self.labels]}
        return {**names, **scores, **labels}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = {**self.to_dict(), "layer": [self.short_names[layer] for layer in self.layers]}
        yield from render_table(columns, options.max_width)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        more = f"\n{MAX_REPR_ROWS} of {len(self)} heads" if len(self) > MAX_REPR_ROWS else ""
        return self.rows(range(min(MAX_REPR_ROWS, len(self)))).to_text() + more

    def to_text(self, width: int = 200) -> str:
        """Return the printed table as plain text with at most `width` characters per line.

        Args:
            width: The number of characters.

        Returns:
            The lines of the table.
        """
        console = Console(width=width, color_system=None, force_terminal=False)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _parse_csv(text: str, source: str) -> HeadTable:
    """Parse a CSV text; `source` names it in errors."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    heads: dict[tuple[str, int], None] = {}
    numbers: list[list[float]] = []
    labels: list[tuple[str, ...]] = []
    try:
        header = next(lines, [])
        if header[:2] != ["layer", "head"] or len(set(header)) < len(header) or not all(map(str.isprintable, header)):
            raise ValueError("expected the columns layer, head, and scores, each once")
        with_labels = header[-1] == "labels"
        for row in lines:
            if len(row) != len(header):
                raise ValueError(f"expected {len(header)} cells, got {len(row)}")
            head = row[0], _parse_head(row[1])
            if not row[0].isprintable():
                raise ValueError(f"invalid layer name {row[0]!r}")
            if head in heads:
                raise ValueError(f"duplicate head {head[1]} of {head[0]}")
            heads[head] = None
            numbers.append([float(cell) for cell in row[2 : len(row) - with_labels]])
            labels.append(tuple(row[-1].split("+")) if row[-1] else ())
        if not text.endswith("\n"):  # a truncated number is still a number
            raise ValueError("the file is truncated in this line")
    except (ValueError, csv.Error) as error:
        where = f"{source}, line {max(lines.line_num, 1)}"
        raise CheckpointError(f"{where}: not a table written by HeadTable.to_csv: {str(error)[:200]}") from error
    scores = header[2 : len(header) - with_labels]
    columns = torch.tensor(numbers, dtype=torch.float64).reshape(len(heads), len(scores)).unbind(1)
    return HeadTable(
        tuple(layer for layer, _ in heads),
        tuple(head for _, head in heads),
        dict(zip(scores, columns, strict=True)),
        tuple(labels) if with_labels else None,
    )


def _parse_head(cell: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
        raise ValueError(f"expected the index of a head, got {cell[:50]!r}")
    return int(cell)
