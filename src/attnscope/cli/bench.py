"""`attnscope bench NAME`."""

from __future__ import annotations

import click

from attnscope.cli.commands import Name, Options, argument, command, option
from attnscope.cli.output_paths import check_output_file

UNNAMED = ""
"""The value of --report without a FILE."""


def names() -> tuple[str, ...]:
    """Return the names of all benchmarks."""
    from attnscope.bench import NAMES

    return NAMES


@command(
    "bench",
    about="measure the cost of attention and recording here",
    description="Measure on this machine what attention, an attention matrix or a recording costs, and print tables. "
    "The benchmark device also verifies all contracts on your GPU. Without a NAME, list all benchmarks.",
    examples=["attnscope bench attention", "attnscope bench device --report"],
)
@argument("name", type=Name("benchmark", names), required=False, about="the benchmark to run")
@option(
    "--size",
    type=Name("size", ("small", "full")),
    default="small",
    metavar="small|full",
    about="small runs in seconds (default: small)",
)
@option(
    "--report",
    type=click.Path(),
    is_flag=False,
    flag_value=UNNAMED,
    metavar="[FILE]",
    about="also write versions, machine, command and tables to FILE (default: a name made from NAME or the device)",
)
def bench(options: Options) -> None:
    """Run the benchmark and print its tables."""
    if options.name is None:
        print("\n".join(names()))
        return
    if options.report == UNNAMED:
        from attnscope.bench import default_report

        options.report = default_report(options.name)
    check_output_file(options.report, command_name="bench")
    from attnscope.bench import run

    run(options.name, size=options.size, report=options.report)
