"""`python -m benchmarks.peers`, in a checkout: measure other libraries and AttnScope, and print or write the tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attnscope.bench import Size, present
from attnscope.bench.report import Table
from attnscope.errors import AttnScopeError
from benchmarks.peers import tables
from benchmarks.peers.saved_points import SavedPoints


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Measure what the attention weights of one forward pass cost with each library.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--size", type=Size, choices=tuple(Size), default=Size.SMALL, help="small runs in minutes (default)"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="folder or hub name of the model for all libraries (default at full size: SmolLM2-135M-Instruct)",
    )
    parser.add_argument("--memory", metavar="GIB", type=float, help="stop a process that uses more memory than this")
    parser.add_argument(
        "--resume", metavar="FOLDER", type=Path, help="keep every point there, and read those that are there already"
    )
    parser.add_argument("--minutes", metavar="N", type=float, help="measure nothing new after N minutes")
    parser.add_argument(
        "--only", metavar="LIBRARY", action="append", default=[], help="measure only this library; repeatable"
    )
    parser.add_argument("--report", metavar="FILE", help="also write versions, machine, command and tables to FILE")
    options = parser.parse_args(arguments)
    command = f"{parser.prog} --size {options.size}"
    command += "" if options.model is None else f" --model {Path(options.model).name}"
    command += "" if options.memory is None else f" --memory {options.memory:g}"
    command += "".join(f" --only {name}" for name in options.only)

    def measure(step: Callable[[str], None]) -> Iterator[Table]:
        points = SavedPoints(options.resume, options.minutes)
        return tables(options.size, step, options.model, options.memory, points, options.only)

    try:
        present("peers", command, measure, options.report)
    except AttnScopeError as error:
        print(f"peers: {str(error).removeprefix('peers: ')}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
