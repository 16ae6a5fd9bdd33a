"""`attnscope bench NAME`."""

from __future__ import annotations

import click

from attnscope.cli.commands import Name, Options, argument, command, option
from attnscope.cli.places import check_file


def names() -> tuple[str, ...]:
    """All benchmarks."""
    from attnscope.bench import NAMES

    return NAMES


@command(
    "bench",
    about="measure the cost of attention, recording, training and more",
    description="Run one benchmark on this machine and print its tables. Without a NAME, list all benchmarks.",
    examples=["attnscope bench attention"],
)
@argument("name", type=Name("benchmark", names), required=False, about="the benchmark to run")
@option(
    "--size",
    type=Name("size", ("small", "full")),
    default="small",
    metavar="small|full",
    about="small runs in seconds (default: small)",
)
@option("--report", type=click.Path(), metavar="FILE", about="also write versions, machine, command and tables to FILE")
@option(
    "--data",
    type=click.Path(),
    metavar="FILE",
    multiple=True,
    about="train: also train on this text; survey: read all of it; repeat for several files",
)
@option(
    "--model",
    type=click.Path(),
    metavar="MODEL",
    about="survey, peers: use this model instead of a randomly initialized one",
)
def bench(options: Options) -> None:
    """Measure and print."""
    check_file(options.report, asked_by="bench")
    if options.name is None:
        print("\n".join(names()))
        return
    from attnscope.bench import run

    given = {what: getattr(options, what) for what in ("size", "report", "data", "model")}
    run(options.name, **given)
