"""The `sightline` command and its subcommands.

Each handler imports what it needs when it is called, so that `sightline --help` is quick. What Sightline raises on
purpose is printed as one line; anything else is a bug and keeps its traceback.
"""

import argparse
import sys
from collections.abc import Sequence

from sightline.errors import SightlineError
from sightline.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = build_parser().parse_args(arguments)
    try:
        options.handler(options)
    except SightlineError as error:
        print(f"sightline: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="sightline", description="Attention you can see, at any length.")
    parser.add_argument("--version", action="version", version=f"sightline {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    bench = commands.add_parser("bench", help="measure one thing and print a table")
    bench.add_argument("name", metavar="NAME", help="which benchmark")
    bench.add_argument("--size", choices=("small", "full"), default="small", help="small runs in seconds (default)")
    bench.add_argument("--report", metavar="FILE", help="also write versions, machine, command and table to FILE")
    bench.set_defaults(handler=run_bench)

    doctor = commands.add_parser("doctor", help="show versions, devices and which extras are installed")
    doctor.add_argument("--verify", action="store_true", help="run the contracts of attention on your devices")
    doctor.set_defaults(handler=run_doctor)
    return parser


def run_bench(options: argparse.Namespace) -> None:
    """`sightline bench NAME`."""
    from sightline import bench

    bench.run(options.name, size=options.size, report=options.report)


def run_doctor(options: argparse.Namespace) -> None:
    """`sightline doctor`, and with --verify the contracts on this machine."""
    from rich.console import Console

    from sightline import doctor

    doctor.show(Console())
    if options.verify and not doctor.verify(Console()):
        raise SightlineError(
            "doctor: attention breaks its contracts on this machine, as listed above; please report it"
        )


if __name__ == "__main__":
    sys.exit(main())
