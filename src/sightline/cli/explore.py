"""`sightline explore FOLDER`: a saved trace in the browser."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explore",
        help="show a saved trace in the browser",
        description="Show a trace that trace.save(FOLDER) wrote in the browser, until Ctrl-C.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the trace")
    add_where(parser)
    parser.set_defaults(handler=run)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Options about where the explorer is to be found."""
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port (default: any that is free)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen at (default: 127.0.0.1, for this machine alone)",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="another name that it is reached by, as localhost:9000 through a tunnel; may be given several times",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")


def where_of(options: argparse.Namespace) -> dict[str, Any]:
    """The same as arguments of `look` and `explore`: on the command line, both wait and print."""
    return {
        "port": options.port,
        "host": options.host,
        "names": options.name,
        "open_browser": not options.no_browser,
        "block": True,
        "say": lambda sentence: print(sentence, flush=True),
    }


def run(options: argparse.Namespace) -> None:
    """Open and wait."""
    from sightline.explore import explore

    explore(options.folder, **where_of(options))
