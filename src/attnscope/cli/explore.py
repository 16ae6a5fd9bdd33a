"""`attnscope explore [FOLDER ...]`: saved traces, a survey, or a watched run in the browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnscope.cli.commands import Handler, Options, argument, command, option
from attnscope.errors import SettingError
from attnscope.extras import require

if TYPE_CHECKING:
    from attnscope.recording import Trace


def address_options(handler: Handler) -> Handler:
    """Add the options about the address that the explorer listens at."""
    for add in (
        option("--no-browser", is_flag=True, about="print the address, and do not open a browser"),
        option(
            "--name",
            multiple=True,
            metavar="HOST:PORT",
            about="another host name of the server, such as localhost:9000 through a tunnel; repeatable",
        ),
        option(
            "--host",
            default="127.0.0.1",
            metavar="ADDRESS",
            about="the address to listen at (default: 127.0.0.1, which only this machine reaches)",
        ),
        option("--port", type=int, default=0, metavar="N", about="the port (default: any free port)"),
    ):
        handler = add(handler)
    return handler


def address_of(options: Options) -> dict[str, Any]:
    """Convert the options to arguments of `look` and `explore`, which then wait and print."""
    return {
        "port": options.port,
        "host": options.host,
        "names": list(options.name),
        "open_browser": not options.no_browser,
        "block": True,
        "say": lambda sentence: print(sentence, flush=True),
    }


@command(
    "explore",
    about="show saved traces, a survey, a watched run, or an example in the browser",
    description="Show saved traces (trace.save), a survey (attnscope survey run) or a watched training run "
    "(attnscope.watch) in the browser. Any two of several traces can be compared. Without a FOLDER, show an example. "
    "Press Ctrl-C to stop.",
    examples=["attnscope explore traces/first traces/second", "attnscope explore traces/first --save page.html"],
)
@argument(
    "folders",
    nargs=-1,
    required=False,
    metavar="FOLDER",
    about="the folder of a trace, of a survey, or of a watched run",
)
@option(
    "--model",
    type=click.Path(),
    metavar="MODEL",
    about="the model that reads the passages of a survey (default: the model of the survey)",
)
@option(
    "--save",
    type=click.Path(),
    metavar="FILE.html",
    about="write a head as a static page instead, with all other heads that fit into 12 MB",
)
@option("--head", metavar="L12H3", about="the head to save (default: the one that the explorer opens on)")
@address_options
def explore(options: Options) -> None:
    """Open and wait, or save."""
    require("explore", "starlette", "uvicorn", "safetensors")
    from attnscope.explorer import explore as open_explorer

    if options.save is not None:
        save(options)
    elif options.head is not None:
        raise SettingError(f"--head {options.head} needs --save FILE.html")
    else:
        open_explorer(*options.folders, model=options.model, **address_of(options))


def save(options: Options) -> None:
    """Write a page of a head."""
    from rich.console import Console

    from attnscope.explorer.library.survey import is_survey
    from attnscope.explorer.static_export.page_file import save_page
    from attnscope.recording import open_trace
    from attnscope.telemetry.run_reader import is_watched_run

    if any(is_survey(folder) or is_watched_run(folder) for folder in options.folders) or options.model is not None:
        raise SettingError("--save: expected the folder of a trace, got a survey, a watched run or --model")
    if len(options.folders) != 1:
        raise SettingError(f"--save: expected one trace, got {len(options.folders)} folders")
    folder, page = Path(options.folders[0]), Path(options.save)
    trace = open_trace(folder)
    layer, head = (None, None) if options.head is None else find_head(trace, options.head)
    with Console(stderr=True).status(f"exporting {options.head or 'a head'}"):
        num_heads = save_page(trace, page, layer=layer, head=head, name=folder.resolve().name)
    total = sum(recorded.shape[1] for recorded in trace.layers.values())
    print(f"{page}: {num_heads:,} of {total:,} heads, {page.stat().st_size / 1e6:.1f} MB")


def find_head(trace: Trace, name: str) -> tuple[int, int]:
    """The index of the layer, and of the head in it, that a name such as L12H3 stands for."""
    place = re.fullmatch(r"[Ll](\d{1,7})[Hh](\d{1,7})", name)
    if place is None:
        raise SettingError(f"--head: expected a head such as L12H3, got {name!r}")
    layer, number = int(place[1]), int(place[2])
    numbers = list(trace.layer(layer).heads) if layer < len(trace) else []  # a trace may have only some heads
    if number not in numbers:
        known = (
            f"layers 0 to {len(trace) - 1}" if not numbers else f"the heads {', '.join(f'H{one}' for one in numbers)}"
        )
        raise SettingError(f"--head {name} is not in this trace, which has {known}")
    return layer, numbers.index(number)
