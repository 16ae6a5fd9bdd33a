"""`attnscope bench NAME`."""

import argparse

from attnscope.cli.parsers import add_command
from attnscope.cli.places import check_file


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "bench",
        about="measure what attention, matrices, training and more cost here",
        description="Measure one thing on this machine and print tables. Without a NAME, list what can be measured.",
        examples=["attnscope bench attention"],
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="what to measure")
    parser.add_argument("--size", choices=("small", "full"), default="small", help="small runs in seconds (default)")
    parser.add_argument("--report", metavar="FILE", help="also write versions, machine, command and table to FILE")
    parser.add_argument(
        "--data", metavar="FILE", nargs="+", default=(), help="train: also learn from this text; survey: read all of it"
    )
    parser.add_argument("--model", metavar="MODEL", help="survey, peers: take this model instead of random weights")
    parser.add_argument("--memory", metavar="GIB", type=float, help="peers: end what takes more memory than this")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    check_file(options.report, asked_by="bench")
    from attnscope import bench

    if options.name is None:
        print("\n".join(bench.NAMES))
        return
    given = {what: getattr(options, what) for what in ("size", "report", "data", "model", "memory")}
    bench.run(options.name, **given)
