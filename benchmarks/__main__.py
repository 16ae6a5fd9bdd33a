"""`python -m benchmarks NAME`, in a checkout: run one benchmark, and print or write its tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from attnscope.bench import Size, present
from attnscope.bench.report import Table
from attnscope.errors import AttnScopeError, SettingError
from benchmarks import NAMES


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run a development benchmark. `attnscope bench` runs attention, matrix and record; "
        "`python -m benchmarks.peers` runs the comparison with other libraries.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", choices=NAMES, help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--size", type=Size, choices=tuple(Size), default=Size.SMALL, help="default: small")
    parser.add_argument("--model", metavar="MODEL", help="survey: use this model instead of a randomly initialized one")
    parser.add_argument(
        "--data",
        metavar="FILE",
        action="append",
        default=[],
        help="train: also train on this text; survey: survey this file with one process and with two workers; "
        "publish: publish this saved trace instead of recording one; repeatable",
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="publish, publish_long: record this many tokens")
    parser.add_argument("--heads", metavar="HEADS", help="publish: publish these heads, such as L0-L5 (default: all)")
    parser.add_argument("--seconds", type=int, metavar="N", help="publish: load each web server this long")
    parser.add_argument("--report", metavar="FILE", help="also write versions, machine, command and tables to FILE")
    options = parser.parse_args(arguments)
    try:
        run(**vars(options))
    except AttnScopeError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


def run(name: str, *, size: Size = Size.SMALL, report: str | None = None, **options: Any) -> list[Table]:
    """Run a benchmark with the options that it has; return its tables."""
    benchmark = import_module(f"benchmarks.{name}")
    given = {option: value for option, value in options.items() if value}
    for option in given.keys() - signature(benchmark.tables).parameters.keys():
        raise SettingError(f"{name} has no option --{option}; leave it out")
    command = f"python -m benchmarks {name} --size {size}"
    for option, value in given.items():
        command += "".join(f" --{option} {Path(str(one)).name}" for one in (value if option == "data" else (value,)))
    return present(name, command, lambda step: benchmark.tables(size, step, **given), report)


if __name__ == "__main__":
    sys.exit(main())
