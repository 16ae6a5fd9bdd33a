"""`attnscope publish TRACE --out DIR`: a saved trace as a static site; `--gallery DIR`: a page of several sites."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.output_paths import report_write_errors
from attnscope.cli.progress import stderr_progress
from attnscope.extras import require
from attnscope.formatting import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from attnscope.stores.paths import AnyPath


@command(
    "publish",
    about="write a saved trace as a static site, which needs no Python",
    description="Write the explorer with all heads of TRACE as a static site. A browser reads it by HTTP range "
    "requests, and computes exact weights from the queries and keys.",
    notes=(
        "Size and time are estimated first. A publication that was interrupted continues\n"
        "when the same command runs again: the site is in DIR.part until it is complete,\n"
        "or has no manifest.json yet if it is in an object store."
    ),
    examples=[
        "attnscope publish traces/first --out site",
        "attnscope publish traces/first --heads L0-L5,L12H3 --budget 2GB --out site",
        "attnscope publish traces/first --workers 4 --out s3://bucket/site",
        "attnscope publish traces/first --estimate",
        "attnscope publish --gallery sites",
    ],
)
@argument("trace", required=False, about="the folder of a saved trace")
@option("--out", metavar="DIR", about="the folder of the site, which must not exist, or a URL in an object store")
@option("--heads", metavar="HEADS", about="the heads, such as L0-L5,L12H3 (default: all)")
@option("--budget", default="2GB", metavar="SIZE", about="refuse to write more, such as 500MB (default: 2GB)")
@option("--name", metavar="TEXT", about="the name or title to display (default: that of the folder)")
@option("--workers", type=int, default=1, metavar="N", about="number of processes that compute heads (default: 1)")
@option("--estimate", "only_estimate", is_flag=True, about="print size and time, and write nothing")
@option(
    "--gallery",
    type=click.Path(),
    metavar="DIR",
    about="instead, write a page that lists all sites in a folder, by model and text",
)
def publish(options: Options) -> None:
    """Estimate, write, and print where the site is; or write a gallery."""
    require("explore", "starlette", "safetensors")
    if options.gallery is not None:
        publish_gallery(options)
        return
    from attnscope.errors import SettingError
    from attnscope.explorer.static_site import plan
    from attnscope.explorer.static_site.publish import estimate, publish_trace
    from attnscope.recording import open_trace
    from attnscope.stores.paths import to_path

    if options.trace is None:
        raise SettingError("publish: missing TRACE, the folder of a saved trace; or give --gallery DIR")
    target = None if options.out is None or options.only_estimate else to_path(options.out)
    if target is None and not options.only_estimate:
        raise SettingError("publish: missing --out DIR")
    folder = Path(options.trace)
    trace, budget = open_trace(folder), plan.parse_bytes(options.budget)
    heads = plan.select_heads(trace, [name for name in re.split(r"[\s,]+", options.heads or "") if name])
    expected = estimate(trace, heads, budget=None if target is None else budget, workers=options.workers)
    about = f"{expected.num_heads:,} heads, at most {format_bytes(expected.max_bytes)}, "
    about += f"about {format_seconds(expected.seconds)}"
    if target is None:
        print(about)
        return
    print(f"publish: {about}", file=sys.stderr)
    with explain_interrupt(target), report_write_errors(str(target), command_name="publish"), stderr_progress() as bar:
        task = bar.add_task("publishing", total=None)
        site = publish_trace(
            trace,
            target,
            heads,
            name=options.name or folder.resolve().name,
            workers=options.workers,
            saved_in=folder,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            report=lambda sentence: print(f"publish: {sentence}", file=sys.stderr),
        )
    print(f"{target}: {expected.num_heads:,} heads, {site.num_files:,} files, {format_bytes(site.num_bytes)}")


@contextmanager
def explain_interrupt(target: AnyPath) -> Iterator[None]:
    """Print how to continue after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        where = f" in {target}.part" if isinstance(target, Path) else ""
        print(f"publish: stopped; the same command continues{where}", file=sys.stderr)
        raise


def publish_gallery(options: Options) -> None:
    """Write the page of a gallery, and print where it is."""
    from attnscope.errors import SettingError
    from attnscope.explorer.static_site.gallery import write_gallery

    others = {"TRACE": options.trace, "--out": options.out, "--heads": options.heads}
    given = [name for name, value in others.items() if value is not None]
    if options.only_estimate or given:
        raise SettingError(f"publish: --gallery cannot be combined with {[*given, '--estimate'][0]}")
    with report_write_errors(options.gallery, command_name="publish"):
        sites = write_gallery(options.gallery, title=options.name)
    models = format_count(len({site.model for site in sites}), "model")
    print(f"{Path(options.gallery) / 'index.html'}: {format_count(len(sites), 'site')} of {models}")
