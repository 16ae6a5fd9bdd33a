"""`attnscope survey run MODEL CORPUS... --out DIR`: what every head does over a corpus, on one process or on many.

`attnscope survey show` and `attnscope survey diff` print the results; they are in `survey_tables.py`.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from attnscope.cli.commands import Options, argument, command, make_group, option
from attnscope.cli.survey_tables import diff, show
from attnscope.errors import SettingError
from attnscope.extras import require

if TYPE_CHECKING:
    from attnscope.survey import Survey
    from attnscope.survey.work.pace import Pace

QUIET = 10.0  # seconds between two plain lines


survey = make_group(
    "survey",
    about="score every head over a corpus of any size",
    description="Score every head over a corpus of any size, and print or compare the results.",
    examples=[
        "attnscope survey run HuggingFaceTB/SmolLM2-135M-Instruct corpus/ --out first",
        "attnscope survey show first",
        "attnscope survey diff first second",
    ],
)
INPUT = "Input options (changing any of these starts a new survey)"
EXECUTION = "Execution options (do not affect results beyond floating-point rounding)"


@command(
    "run",
    group=survey,
    about="read a corpus, or resume an interrupted survey",
    description="Read a corpus and write the distribution of every statistic of every head, with example passages. "
    "The same command resumes a survey that was interrupted.",
    examples=["attnscope survey run HuggingFaceTB/SmolLM2-135M-Instruct corpus/ --out first"],
)
@argument("model", about="a folder, a name on the hub, or a GGUF file")
@argument("corpus", nargs=-1, required=True, about="files, folders, globs or URLs of text, JSONL and Parquet")
@option("--out", type=click.Path(), metavar="DIR", required=True, about="the folder of the survey")
@option("--window", type=int, metavar="N", section=INPUT, about="maximum length of a passage in tokens (default: 512)")
@option("--whole", is_flag=True, section=INPUT, about="read whole documents, of any length, instead of passages")
@option("--batch", type=int, metavar="TOKENS", section=INPUT, about="tokens per forward pass (default: 2048)")
@option("--field", metavar="NAME", section=INPUT, about="the text field of JSONL and Parquet (default: text)")
@option("--separator", metavar="LINE", section=INPUT, about="the line between documents in a text file")
@option("--shard-bytes", type=int, metavar="N", section=INPUT, about="bytes per shard")
@option(
    "--workers", type=int, default=1, metavar="N", section=EXECUTION, about="number of processes; more than 1 need Ray"
)
@option(
    "--threads", type=int, metavar="N", section=EXECUTION, about="threads per worker (default: its share of the cores)"
)
@option("--cpus", type=float, metavar="N", section=EXECUTION, about="CPUs per worker for Ray (default: its threads)")
@option("--gpus", type=float, default=0.0, metavar="N", section=EXECUTION, about="GPUs per worker for Ray (default: 0)")
@option(
    "--device", default="cpu", metavar="NAME", section=EXECUTION, about="device of the model: cpu, cuda (default: cpu)"
)
@option("--ray", metavar="ADDRESS", section=EXECUTION, about="the address of a running Ray cluster; auto finds it")
def run(options: Options) -> None:
    """Survey, and print what was read."""
    if options.window is not None and options.whole:
        raise SettingError("survey: --window cannot be combined with --whole")
    require("survey", "pyarrow", "ddsketch")
    from attnscope.survey import Workers, run_survey

    workers = Workers(
        count=options.workers,
        threads=options.threads,
        cpus=options.cpus,
        gpus=options.gpus,
        device=options.device,
        address=options.ray,
    )
    if not workers.on_ray and (options.cpus is not None or options.gpus):
        raise SettingError("survey: --cpus and --gpus need Ray; give --workers or --ray")
    named = ("window", "batch", "field", "separator", "shard_bytes")
    settings = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.whole:
        settings["window"] = None
    display = Display()
    try:
        with display:
            found = run_survey(
                options.model, list(options.corpus), options.out, workers=workers, progress=display.show, **settings
            )
    except KeyboardInterrupt:
        display.interrupted()
        raise
    tell(found, options.out, finished_before=display.pace is None)


survey.add_command(show)
survey.add_command(diff)


def tell(found: Survey, folder: str, *, finished_before: bool) -> None:
    """What was read, and where the tables are."""
    corpus, problems = found.manifest["corpus"], found.manifest["problems"]["count"]
    if finished_before:
        print(f"{folder} already holds this survey, and it is finished", file=sys.stderr)
    print(
        f"{counted(corpus['tokens'], 'token')} in {counted(corpus['passages'], 'passage')} of "
        f"{counted(corpus['documents'], 'document')}, {counted(problems, 'problem')}, in {folder}"
    )
    if problems:
        print(f"problems are listed in {folder}/manifest.json", file=sys.stderr)


class Display:
    """A survey on standard error: a bar where that is a terminal, and a line now and then where it is not."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.pace: Pace | None = None
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.completed:,.0f} tokens"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[told]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("reading", total=None, told="")
        self._last = time.monotonic()

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, pace: Pace) -> None:
        """The first time, what there is to read; then, how far it has come."""
        if self.pace is None:
            self.pace = pace
            going_on = (
                f"resuming after {pace.shards_done:,} of {counted(pace.shards, 'shard')}: " if pace.shards_done else ""
            )
            tokens = float(f"{pace.expected_tokens:.2g}")  # no more is known before the first shard
            size = f"{pace.size / 1e6:,.1f} MB" if pace.size >= 1e6 else f"{pace.size / 1e3:,.1f} kB"
            self._say(
                f"{going_on}{counted(pace.missing, 'shard')} to read, about {tokens:,.0f} tokens; the corpus has {size}"
            )
        told = described(pace)
        self._bar.update(self._task, completed=pace.tokens, total=pace.expected_tokens, told=told)
        if not self._console.is_terminal and time.monotonic() - self._last >= QUIET:
            self._last = time.monotonic()
            self._say(f"{pace.tokens:,} tokens  {told}")

    def interrupted(self) -> None:
        """Print how to resume."""
        if self.pace is not None:
            done, whole = self.pace.shards_done, self.pace.shards
            self._say(f"stopped after {done:,} of {counted(whole, 'shard')}; the same command resumes it")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def counted(number: int, what: str) -> str:
    """So many of something, in words.

    >>> counted(1, "shard"), counted(2000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def described(pace: Pace) -> str:
    """How far a survey has come, how fast it goes, how long workers wait, and the time that is left."""
    told = f"shard {pace.shards_done:,}/{pace.shards:,}"
    if pace.tokens_a_second:
        told += f"  {pace.tokens_a_second:,.0f} tokens/s  {pace.waiting:.0%} not in the model"
    if pace.seconds_left is not None:
        told += f"  {timedelta(seconds=round(pace.seconds_left))} left"
    return told
