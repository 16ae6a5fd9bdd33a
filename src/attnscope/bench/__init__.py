"""Measurements that anyone can repeat: `attnscope bench NAME`.

A benchmark is a module with `tables(size, step)`, which yields tables and calls `step` with what it does next. One that
can measure on texts or with a model of the user's own also takes `data` or `model`. Names are here without torch, so
that they are listed and completed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.errors import AttnScopeError, unknown

if TYPE_CHECKING:
    from attnscope.bench import report as reports

NAMES = ("attention", "matrix", "atlas", "generate", "record", "train", "survey")
BENCHMARKS = {name: f"attnscope.bench.{name}" for name in NAMES}


def run(
    name: str,
    *,
    size: str = "small",
    report: str | None = None,
    data: Sequence[str] = (),
    model: str | None = None,
) -> list[reports.Table]:
    """Run a benchmark, print its tables as they are done, and write them to a file if one is named."""
    if name not in BENCHMARKS:
        raise AttnScopeError(f"bench: {unknown('benchmark', name, BENCHMARKS)}")
    benchmark = import_module(BENCHMARKS[name])
    own = {what: given for what, given in (("data", data), ("model", model)) if given not in (None, (), [])}
    for what in own.keys() - signature(benchmark.tables).parameters.keys():
        raise AttnScopeError(f"bench: {name} measures without {what} of yours; leave out --{what}")
    given = "" if model is None else f" --model {Path(model).name}"
    given += "".join(f" --data {Path(file).name}" for file in data)
    command = f"attnscope bench {name} --size {size}{given}"
    return present(name, command, lambda step: benchmark.tables(size, step, **own), report)


def present(
    name: str,
    command: str,
    tables: Callable[[Callable[[str], None]], Iterable[reports.Table]],
    report: str | None = None,
) -> list[reports.Table]:
    """Print the tables of a benchmark as they are done, and write them to a file if one is named.

    Args:
        name: What is measured, for the heading and the status line.
        command: What repeats the measurement, for the file.
        tables: Yields the tables, given a function to call with what is measured next.
        report: The file to write.

    Returns:
        All tables.
    """
    from rich.console import Console

    from attnscope.bench import report as reports

    console, progress = Console(), Console(stderr=True)
    found = []
    with progress.status(f"bench {name}") as status:
        for table in tables(lambda what: status.update(f"bench {name}: {what}")):
            reports.show(table, console)
            found.append(table)
            if report is not None:  # after each: what took hours is not lost with what comes next
                reports.write(Path(report), name, command, found)
    for missed in (line for table in found for line in table.missed):
        progress.print(f"missed its bound: {missed}", markup=False, soft_wrap=True)
    return found
