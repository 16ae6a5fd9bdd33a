"""`attnscope survey run MODEL CORPUS... --out DIR`: score every head over a corpus, with one process or many.

`attnscope survey show` and `attnscope survey diff` print the results; they are in `survey_tables.py`. `attnscope
survey export` is in `survey_export.py`.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from attnscope.cli.commands import Options, argument, command, make_group, option
from attnscope.cli.survey_export import export
from attnscope.cli.survey_tables import diff, show
from attnscope.errors import SettingError
from attnscope.extras import require
from attnscope.formatting import format_count

if TYPE_CHECKING:
    from attnscope.survey import Survey
    from attnscope.survey.execution.progress import SurveyProgress

survey = make_group(
    "survey",
    about="score every head over a corpus of any size",
    description="Score every head over a corpus of any size, and print, compare or export the results.",
    examples=[
        "attnscope survey run HuggingFaceTB/SmolLM2-135M-Instruct corpus/ --out first",
        "attnscope survey show first",
        "attnscope survey diff first second",
        "attnscope survey export first --out exports",
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
@argument(
    "model",
    about="a folder, a name on the hub, a GGUF file, or a downloaded model (see attnscope download)",
)
@argument("corpus", nargs=-1, required=True, about="files, folders, globs or URLs of text, JSONL and Parquet")
@option(
    "--out",
    type=click.Path(),
    metavar="DIR",
    required=True,
    about="the folder of the survey, or a URL in an object store",
)
@option(
    "--max-length", type=int, metavar="N", section=INPUT, about="maximum length of a passage in tokens (default: 512)"
)
@option("--whole", is_flag=True, section=INPUT, about="read whole documents, of any length, instead of passages")
@option("--batch-tokens", type=int, metavar="N", section=INPUT, about="tokens per forward pass (default: 2048)")
@option("--field", metavar="NAME", section=INPUT, about="the text field of JSONL and Parquet (default: text)")
@option("--separator", metavar="LINE", section=INPUT, about="the line between documents in a text file")
@option("--shard-bytes", type=int, metavar="N", section=INPUT, about="bytes per shard")
@option(
    "--max-skipped",
    type=float,
    metavar="SHARE",
    section=EXECUTION,
    about="exit with an error if more of the corpus than this is invalid and skipped (default: 0.05)",
)
@option(
    "--workers", type=int, default=1, metavar="N", section=EXECUTION, about="number of processes; more than 1 need Ray"
)
@option(
    "--threads", type=int, metavar="N", section=EXECUTION, about="threads per worker (default: its share of the cores)"
)
@option("--cpus", type=float, metavar="N", section=EXECUTION, about="CPUs per worker for Ray (default: its threads)")
@option(
    "--gpus",
    type=float,
    default=0.0,
    metavar="N",
    section=EXECUTION,
    about="GPUs per worker for Ray, at most 1 (default: 0)",
)
@option(
    "--device", default="cpu", metavar="NAME", section=EXECUTION, about="device of the model: cpu, cuda (default: cpu)"
)
@option("--ray", metavar="ADDRESS", section=EXECUTION, about="the address of a running Ray cluster; auto finds it")
@option(
    "--start-timeout",
    type=float,
    metavar="SECONDS",
    section=EXECUTION,
    about="how long to wait for Ray to start a worker, for example while a cluster grows (default: 900)",
)
def run(options: Options) -> None:
    """Run a survey, and print what was read."""
    if options.max_length is not None and options.whole:
        raise SettingError("survey: --max-length cannot be combined with --whole")
    require("survey", "pyarrow", "ddsketch")
    from attnscope.survey import Workers, run_survey

    workers = Workers(
        count=options.workers,
        threads=options.threads,
        cpus=options.cpus,
        gpus=options.gpus,
        device=options.device,
        address=options.ray,
        **({} if options.start_timeout is None else {"start_timeout": options.start_timeout}),
    )
    if not workers.uses_ray and (options.cpus is not None or options.gpus):
        raise SettingError("survey: --cpus and --gpus need Ray; give --workers or --ray")
    named = ("max_length", "batch_tokens", "field", "separator", "shard_bytes", "max_skipped")
    settings = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.whole:
        settings["max_length"] = None
    display = Display()
    try:
        with display:
            found = run_survey(
                options.model, list(options.corpus), options.out, workers=workers, progress=display.show, **settings
            )
    except KeyboardInterrupt:
        display.print_resume_hint()
        raise
    finally:
        display.print_excluded()
    print_result(found, click.format_filename(options.out), was_finished=display.progress is None)


survey.add_command(show)
survey.add_command(diff)
survey.add_command(export)


def print_result(found: Survey, folder: str, *, was_finished: bool) -> None:
    """Print what was read, and where the tables are."""
    corpus, problems = found.manifest["corpus"], found.manifest["problems"]["count"]
    if was_finished:
        print(f"{folder} already holds this survey, and it is finished", file=sys.stderr)
    print(
        f"{format_count(corpus['tokens'], 'token')} in {format_count(corpus['passages'], 'passage')} of "
        f"{format_count(corpus['documents'], 'document')}, {format_count(problems, 'problem')}, in {folder}"
    )
    if problems:
        print(f"problems are listed in {folder}/manifest.json", file=sys.stderr)


class Display:
    """Shows the progress of a survey on standard error."""

    def __init__(self) -> None:
        from attnscope.progress import PLAIN_LINE_SECONDS, StatusBar

        self.progress: SurveyProgress | None = None
        self._bar = StatusBar("{task.completed:,.0f} tokens", delay=PLAIN_LINE_SECONDS)

    def __enter__(self) -> Display:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def show(self, progress: SurveyProgress) -> None:
        """Show the amount of work the first time, and the progress."""
        if self.progress is None:
            self.progress = progress
            done, shards = progress.shards_done, format_count(progress.shards, "shard")
            resuming = f"resuming after {done:,} of {shards}: " if done else ""
            tokens = float(f"{progress.expected_tokens:.2g}")  # a rough estimate before the first shard
            size = f"{progress.size / 1e6:,.1f} MB" if progress.size >= 1e6 else f"{progress.size / 1e3:,.1f} kB"
            missing = format_count(progress.missing, "shard")
            self._bar.print(f"{resuming}{missing} to read, about {tokens:,.0f} tokens; the corpus has {size}")
        tokens, total = progress.tokens, progress.expected_tokens
        self._bar.update(tokens, status_text(progress), plain=f"{tokens:,} tokens", total=total)

    def print_resume_hint(self) -> None:
        """Print how to resume."""
        if self.progress is not None:
            done, shards = self.progress.shards_done, format_count(self.progress.shards, "shard")
            self._bar.print(f"stopped after {done:,} of {shards}; the same command resumes it")

    def print_excluded(self) -> None:
        """Print the machines that were given no more work."""
        for machine, error in (self.progress.excluded_machines if self.progress else {}).items():
            self._bar.print(f"the machine {machine} was excluded after an error: {error}")


def status_text(progress: SurveyProgress) -> str:
    """Shards done, throughput, overhead and remaining time; at the end, partial results merged."""
    if progress.to_merge:
        return f"merged {progress.merged:,}/{progress.to_merge:,} partial results"
    text = f"shard {progress.shards_done:,}/{progress.shards:,}"
    if progress.active_workers < progress.workers:
        text += f"  {progress.active_workers:,} of {progress.workers:,} workers"
    if progress.tokens_per_second:
        text += f"  {progress.tokens_per_second:,.0f} tokens/s  {progress.overhead:.0%} not in the model"
    if progress.remaining_seconds is not None:
        text += f"  {timedelta(seconds=round(progress.remaining_seconds))} left"
    return text
