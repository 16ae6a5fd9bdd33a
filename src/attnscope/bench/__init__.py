"""Measurements that anyone can repeat: `attnscope bench NAME`.

A benchmark is a module with `tables(size, step)`, which yields tables and calls `step` with what it does next. One that
can measure on texts or with a model of the user's own also takes `data` or `model`; one that ends what takes too much
memory takes `memory`, in GiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path

from rich.console import Console

from attnscope.bench import report as reports
from attnscope.errors import AttnScopeError

NAMES = ("attention", "matrix", "atlas", "generate", "record", "train", "survey", "peers")
BENCHMARKS = {name: f"attnscope.bench.{name}" for name in NAMES}


def run(
    name: str,
    *,
    size: str = "small",
    report: str | None = None,
    data: Sequence[str] = (),
    model: str | None = None,
    memory: float | None = None,
) -> list[reports.Table]:
    """Run a benchmark, print its tables as they are done, and write them to a file if one is named."""
    if name not in BENCHMARKS:
        raise AttnScopeError(f"bench: there is no benchmark {name!r}; there is: {', '.join(BENCHMARKS)}")
    benchmark = import_module(BENCHMARKS[name])
    own = {
        what: given
        for what, given in (("data", data), ("model", model), ("memory", memory))
        if given not in (None, (), [])
    }
    for what in own.keys() - signature(benchmark.tables).parameters.keys():
        raise AttnScopeError(f"bench: {name} measures without {what} of yours; leave out --{what}")
    given = "" if model is None else f" --model {Path(model).name}"
    given += "" if memory is None else f" --memory {memory:g}"
    given += "".join([" --data", *(f" {Path(file).name}" for file in data)]) if data else ""
    console, progress = Console(), Console(stderr=True)
    tables = []
    with progress.status(f"bench {name}") as status:
        for table in benchmark.tables(size, lambda what: status.update(f"bench {name}: {what}"), **own):
            reports.show(table, console)
            tables.append(table)
            if report is not None:  # after each: what took hours is not lost with what comes next
                reports.write(Path(report), name, f"attnscope bench {name} --size {size}{given}", tables)
    for missed in (line for table in tables for line in table.missed):
        progress.print(f"missed its bound: {missed}", markup=False, soft_wrap=True)
    return tables
