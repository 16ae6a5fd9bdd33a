"""`sightline bench NAME`."""

import argparse


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("bench", help="measure one thing and print a table")
    parser.add_argument("name", metavar="NAME", help="which benchmark")
    parser.add_argument("--size", choices=("small", "full"), default="small", help="small runs in seconds (default)")
    parser.add_argument("--report", metavar="FILE", help="also write versions, machine, command and table to FILE")
    parser.add_argument(
        "--data", metavar="FILE", nargs="+", default=(), help="train: also learn from this text; survey: also survey it"
    )
    parser.add_argument("--model", metavar="MODEL", help="survey: take this model instead of random weights")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    from sightline import bench

    bench.run(options.name, size=options.size, report=options.report, data=options.data, model=options.model)
