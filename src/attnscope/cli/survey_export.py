"""`attnscope survey export DIR --out DIR`: a survey in the format of another tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnscope.cli.commands import Name, Options, argument, command, option
from attnscope.cli.output_paths import report_write_errors
from attnscope.cli.progress import stderr_progress
from attnscope.errors import SettingError
from attnscope.extras import require
from attnscope.formatting import format_seconds

if TYPE_CHECKING:
    from attnscope.survey.headvis.export import Estimate

FORMATS = ("headvis",)


@command(
    "export",
    about="write a survey as a HeadVis tree, with attention patterns",
    description="Write a survey in the format of another tool. headvis is the tree of files that Neuronpedia documents "
    "for HeadVis. A survey stores no attention patterns, so its model reads a random sample of the passages again.",
    notes=(
        "Time and size are estimated first. All numbers are those of the sample.\n"
        "The tree is written to DIR/MODEL/headvis/CORPUS, which must not exist."
    ),
    examples=[
        "attnscope survey export surveys/first --out exports",
        "attnscope survey export surveys/first --model-id gemma-2-2b --out exports",
        "attnscope survey export surveys/first --estimate",
    ],
)
@argument("survey", metavar="DIR", about="the folder of a finished survey")
@option("--format", default="headvis", type=Name("format", FORMATS), metavar="NAME", about="headvis (default)")
@option("--out", type=click.Path(), metavar="DIR", about="the folder of all exports")
@option("--model", type=click.Path(), metavar="MODEL", about="where the model is now (default: where it was)")
@option("--model-id", metavar="ID", about="the id of the model on Neuronpedia (default: its name in lower case)")
@option("--dataset", metavar="NAME", about="the name of the corpus (default: that of its only file or folder)")
@option(
    "--passages", type=int, default=256, metavar="N", about="how many passages of the sample (default: 256, or all)"
)
@option("--estimate", "only_estimate", is_flag=True, about="print time and size, and write nothing")
def export(options: Options) -> None:
    """Estimate, record, and print where the tree is."""
    out: str | None = options.out
    if out is None and not options.only_estimate:
        raise SettingError("survey export: missing --out DIR")
    require("survey", "pyarrow", "ddsketch")
    from attnscope.survey import open_survey
    from attnscope.survey.headvis.export import estimate, write_tree
    from attnscope.survey.headvis.source import open_survey_source

    source = open_survey_source(
        open_survey(options.survey),
        model=options.model,
        dataset=options.dataset,
        num_passages=options.passages,
        progress=True,
    )
    about = describe(estimate(source))
    if out is None or options.only_estimate:
        print(about)
        return
    print(f"survey export: {about}", file=sys.stderr)
    with report_write_errors(out, command_name="survey export"), stderr_progress() as bar:
        task = bar.add_task("recording", total=None)
        tree = write_tree(
            source,
            out,
            model_id=options.model_id,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print(describe_tree(tree))


def describe(expected: Estimate) -> str:
    """The estimate in one line."""
    from attnscope.formatting import format_bytes

    return (
        f"{expected.num_heads:,} heads, {expected.num_sequences:,} passages, {expected.num_tokens:,} tokens; "
        f"about {format_bytes(expected.num_bytes)}, about {format_seconds(expected.seconds)}"
    )


def describe_tree(tree: Path) -> str:
    """Where a tree is, and its size."""
    from attnscope.formatting import format_bytes

    files = [path for path in tree.rglob("*") if path.is_file()]
    return f"{tree}: {len(files):,} files, {format_bytes(sum(path.stat().st_size for path in files))}"
