"""Tables of measurements: printed to a terminal, or written to a file with versions, machine and command."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from attnscope.contracts.devices import cpu_model
from attnscope.downloads import describe
from attnscope.version import __version__

MEMORY_INFO = Path("/proc/meminfo")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of measurements: a title, a description of the comparison, columns and rows of text."""

    title: str
    comparison: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """The rows that exceed their bound."""
    drawing: Callable[[], Any] | None = None
    """Draws the table as a matplotlib figure, for a report that is written to a file."""

    def add(self, *cells: str, met: bool | None = None) -> None:
        """Add a row; `met` adds a last cell that says whether the row is within its bound."""
        verdict = () if met is None else ("yes" if met else "NO",)
        self.rows.append((*cells, *verdict))
        if met is False:
            self.missed.append(f"{self.title}: {', '.join(cells)}")


def duration(seconds: float) -> str:
    """Format a time as milliseconds, seconds or minutes.

    >>> duration(0.0123), duration(2.5), duration(3456.0)
    ('12.3 ms', '2.5 s', '57.6 min')
    """
    if seconds >= 600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def show(table: Table, console: Console) -> None:
    """Print a table; tab-separated lines if the output is not a terminal."""
    if not console.is_terminal:
        console.file.write("\n".join("\t".join(row) for row in (table.columns, *table.rows)) + "\n\n")
        console.file.flush()
        return
    drawn = RichTable(*table.columns, title=table.title, caption=table.comparison)
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)


def write(
    path: Path,
    name: str,
    command: str,
    tables: Sequence[Table],
    model: Mapping[str, Any] | None = None,
    conditions: Mapping[str, str] | None = None,
) -> None:
    """Write a report as Markdown, and the drawings of its tables as SVG files in the same folder.

    Args:
        path: The file to write.
        name: The heading.
        command: The command that repeats the measurement.
        tables: The tables.
        model: The fingerprint of the trained model that was measured.
        conditions: Versions and machine; by default those of `usual_conditions`.
    """
    lines = [f"# {name}", "", f"- date: {datetime.date.today().isoformat()}", f"- command: `{command}`"]
    lines += [f"- {what}: {value}" for what, value in (conditions or usual_conditions()).items()]
    if model is not None:
        lines.append(f"- model: {describe(model['name'], model['hash'])}, fingerprint {model['hash']}")
    for table in tables:
        lines += ["", f"## {table.title}", "", table.comparison, ""]
        lines += [_row(table.columns), _row(["---"] * len(table.columns)), *(_row(row) for row in table.rows)]
        if table.drawing is not None:
            lines += ["", f"![{table.title}]({_picture(path, table).name})"]
    path.write_text("\n".join(lines) + "\n")
    for table in tables:  # after the text, so that an error while drawing loses no numbers
        if table.drawing is not None:
            table.drawing().savefig(_picture(path, table))


def usual_conditions() -> dict[str, str]:
    """Return the versions and the machine, without its host name."""
    lines = MEMORY_INFO.read_text(encoding="utf-8").splitlines() if MEMORY_INFO.exists() else []
    memory = [line.split()[1] for line in lines if line.startswith("MemTotal")]
    return {
        "attnscope": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": f"{cpu_model()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
        "memory": f"{int(memory[0]) / 2**20:.0f} GiB" if memory else "unknown",
    }


def _picture(path: Path, table: Table) -> Path:
    return path.with_name(f"{path.stem}_{table.title.replace(' ', '_')}.svg")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
