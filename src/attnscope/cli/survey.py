"""`attnscope survey MODEL CORPUS... --out DIR`: what every head does over a corpus, on one process or on many.

`attnscope survey show` and `attnscope survey diff` print what came of it; they are in `survey_tables.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from attnscope.cli.parsers import add_command
from attnscope.cli.survey_tables import add_diff, add_show
from attnscope.errors import SettingError
from attnscope.extras import require

if TYPE_CHECKING:
    from attnscope.survey import Survey
    from attnscope.survey.work.pace import Pace

QUIET = 10.0  # seconds between two plain lines


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser, and the two that print."""
    parser = add_command(
        commands,
        "survey",
        about="write what every head does over a corpus of any size",
        description="Read a corpus of any size, and write the distribution of every statistic of every head, with "
        "example passages. The same command goes on with a survey that was interrupted.",
        below="what came of it:\n"
        "  attnscope survey show DIR      heads, distributions, passages\n"
        "  attnscope survey diff A B      what changed between two surveys\n"
        "  (a model in a folder that is called show is written ./show)",
        examples=["attnscope survey HuggingFaceTB/SmolLM2-135M-Instruct corpus/ --out first"],
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a name on the hub, or a GGUF file")
    parser.add_argument(
        "corpus", metavar="CORPUS", nargs="+", help="files, folders, globs or addresses of text, JSONL and Parquet"
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder of the survey")
    reading = parser.add_argument_group("what is read", "another answer is another survey")
    length = reading.add_mutually_exclusive_group()
    length.add_argument("--window", type=int, metavar="N", help="tokens of a passage at most (default: 512)")
    length.add_argument("--whole", action="store_true", help="read documents whole, of any length")
    reading.add_argument("--batch", type=int, metavar="TOKENS", help="tokens that are read at once (default: 2048)")
    reading.add_argument("--field", metavar="NAME", help="where JSONL and Parquet have the text (default: text)")
    reading.add_argument("--separator", metavar="LINE", help="the line that stands between documents in a text file")
    reading.add_argument("--shard-bytes", type=int, metavar="N", help="bytes that are read as one piece of work")
    working = parser.add_argument_group("who reads", "this changes no result but its rounding")
    working.add_argument("--workers", type=int, default=1, metavar="N", help="processes; more than 1 take Ray")
    working.add_argument("--threads", type=int, metavar="N", help="threads of a worker (default: its share of cores)")
    working.add_argument("--cpus", type=float, metavar="N", help="CPUs of a worker for Ray (default: its threads)")
    working.add_argument("--gpus", type=float, default=0.0, metavar="N", help="GPUs of a worker for Ray (default: 0)")
    working.add_argument("--device", default="cpu", metavar="NAME", help="where the model is: cpu, cuda (default: cpu)")
    working.add_argument("--ray", metavar="ADDRESS", help="a Ray cluster that is there already; auto finds it")
    parser.set_defaults(handler=run)
    add_show(commands)
    add_diff(commands)


def run(options: argparse.Namespace) -> None:
    """Survey, and say what came of it."""
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
        raise SettingError("survey: --cpus and --gpus are asked of Ray; give --workers or --ray")
    named = ("window", "batch", "field", "separator", "shard_bytes")
    settings = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.whole:
        settings["window"] = None
    display = Display()
    try:
        with display:
            found = run_survey(
                options.model, options.corpus, options.out, workers=workers, progress=display.show, **settings
            )
    except KeyboardInterrupt:
        display.interrupted()
        raise
    tell(found, options.out, finished_before=display.pace is None)


def tell(found: Survey, folder: str, *, finished_before: bool) -> None:
    """What was read, and where the tables are."""
    corpus, problems = found.manifest["corpus"], found.manifest["problems"]["count"]
    if finished_before:
        print(f"{folder} holds this survey already, and it is finished", file=sys.stderr)
    print(
        f"{counted(corpus['tokens'], 'token')} in {counted(corpus['passages'], 'passage')} of "
        f"{counted(corpus['documents'], 'document')}, {counted(problems, 'problem')}, in {folder}"
    )
    if problems:
        print(f"what was left out, and why: {folder}/manifest.json", file=sys.stderr)


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
                f"going on after {pace.shards_done:,} of {counted(pace.shards, 'shard')}: " if pace.shards_done else ""
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
        """Say how to go on."""
        if self.pace is not None:
            done, whole = self.pace.shards_done, self.pace.shards
            self._say(f"stopped after {done:,} of {counted(whole, 'shard')}; the same command goes on from there")

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
