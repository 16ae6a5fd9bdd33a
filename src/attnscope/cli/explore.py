"""`attnscope explore [FOLDER ...]`: saved traces, or a survey, in the browser."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from attnscope.cli.parsers import add_command
from attnscope.errors import SettingError
from attnscope.extras import require


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "explore",
        about="show saved traces, a survey, or an example in the browser",
        description=(
            "Show in the browser, until Ctrl-C, what trace.save(FOLDER) or attnscope survey wrote. Of several traces, "
            "any two can be compared. Without a FOLDER, an example is shown."
        ),
        examples=["attnscope explore traces/first traces/second", "attnscope explore traces/first --save page.html"],
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="the folder of a trace, or of a survey")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="what reads the passages of a survey, when their maps are opened (default: the model of the survey)",
    )
    parser.add_argument(
        "--save",
        metavar="FILE.html",
        help="write a page in one file instead, which shows one head in any browser without AttnScope",
    )
    parser.add_argument("--head", metavar="L12H3", help="the head to save (default: L0H0)")
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
    """Open and wait, or save."""
    require("explore", "starlette", "uvicorn", "safetensors")
    from attnscope.explore import explore

    if options.save is not None:
        save(options)
    elif options.head is not None:
        raise SettingError(f"--head {options.head} says which head to save; give --save FILE.html as well")
    else:
        explore(*options.folders, model=options.model, **where_of(options))


def save(options: argparse.Namespace) -> None:
    """Write a page of one head."""
    from rich.console import Console

    from attnscope.explore.library.surveyed import is_survey
    from attnscope.explore.saved.page_file import save_page
    from attnscope.record import open as open_trace

    if any(map(is_survey, options.folders)) or options.model is not None:
        raise SettingError("--save writes a page of a trace, and not of a survey")
    if len(options.folders) != 1:
        raise SettingError(f"--save writes a page of one trace, and {len(options.folders)} folders were given")
    wanted = options.head or "L0H0"
    place = re.fullmatch(r"[Ll](\d{1,7})[Hh](\d{1,7})", wanted)
    if place is None:
        raise SettingError(f"--head is a head as the explorer names it, as L12H3; got {wanted!r}")
    folder, page = Path(options.folders[0]), Path(options.save)
    trace, layer, number = open_trace(folder), int(place[1]), int(place[2])
    numbers = list(trace.layer(layer).heads) if layer < len(trace) else []  # there may be some of a model's heads alone
    if number not in numbers:
        there = f"{len(trace)} layers" if not numbers else f"in this layer {', '.join(f'H{one}' for one in numbers)}"
        raise SettingError(f"--head {wanted} is not in this trace, which has {there}; they are counted from 0")
    with Console(stderr=True).status(f"putting {wanted} into one page"):
        save_page(trace, page, layer=layer, head=numbers.index(number), name=folder.resolve().name)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB")
