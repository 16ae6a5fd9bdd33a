"""Benchmarks of attention on this machine: `attnscope bench NAME`.

A benchmark is a module with a function `tables(size, step)`. It yields tables, and calls `step` with a description of
each measurement before it starts. It may also have `conditions()`, which a report states instead of the usual ones, and
`default_report()`. This module does not import torch, so names are listed and completed quickly.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attnscope.errors import AttnScopeError, unknown

if TYPE_CHECKING:
    from attnscope.bench.report import Table

NAMES = ("attention", "matrix", "record", "watch", "device")
Chosen = TypeVar("Chosen")


class Size(StrEnum):
    """How large a benchmark is.

    >>> Size("full").choose(small=512, full=8192)
    8192
    """

    SMALL = "small"
    FULL = "full"

    def choose(self, *, small: Chosen, full: Chosen) -> Chosen:
        """Return the value for this size."""
        return small if self is Size.SMALL else full


def run(name: str, *, size: str = "small", report: str | None = None) -> list[Table]:
    """Run a benchmark and print its tables.

    Args:
        name: One of `NAMES`.
        size: "small" runs in seconds, "full" in minutes.
        report: A file to write the tables to, with versions, machine and command.

    Returns:
        All tables.

    Raises:
        AttnScopeError: If there is no benchmark of that name.
    """
    if name not in NAMES:
        raise AttnScopeError(f"bench: {unknown('benchmark', name, NAMES)}")
    benchmark = import_module(f"attnscope.bench.{name}")
    command = f"attnscope bench {name} --size {size}"
    conditions = getattr(benchmark, "conditions", None)
    return present(
        name,
        command,
        lambda step: benchmark.tables(Size(size), step),
        report,
        None if conditions is None else conditions(),
    )


def default_report(name: str) -> str:
    """Return the file that a report goes to if none is named."""
    benchmark = import_module(f"attnscope.bench.{name}")
    if hasattr(benchmark, "default_report"):
        return str(benchmark.default_report())
    return f"{name}_{datetime.date.today().isoformat()}.md"


def present(
    name: str,
    command: str,
    tables: Callable[[Callable[[str], None]], Iterable[Table]],
    report: str | None = None,
    conditions: Mapping[str, str] | None = None,
) -> list[Table]:
    """Print the tables of a benchmark as they are measured, and write them to a file.

    Args:
        name: The name of the benchmark, for the heading and the status line.
        command: The command that repeats the measurement, for the file.
        tables: Yields the tables. It is called with a function that takes a description of the next measurement.
        report: The file to write, or None.
        conditions: What the file states of versions and machine, if not the usual.

    Returns:
        All tables.
    """
    from rich.console import Console

    from attnscope.bench.report import show, write
    from attnscope.progress import show_status

    console, errors = Console(), Console(stderr=True)
    measured = []
    with show_status(f"bench {name}:") as step:
        for table in tables(step):
            show(table, console)
            measured.append(table)
            if report is not None:  # after each table, so that an interrupted run keeps what it measured
                write(Path(report), name, command, measured, conditions=conditions)
    for missed in (line for table in measured for line in table.missed):
        errors.print(f"bound exceeded: {missed}", markup=False, soft_wrap=True)
    if report is not None:
        errors.print(f"report: {report}", markup=False, soft_wrap=True)
    return measured
