"""`attnscope lab`: run experiments on what is taught about attention, and check your own answers to exercises."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from attnscope.cli.commands import Name, Options, argument, command, make_group, option
from attnscope.cli.places import writing
from attnscope.cli.progress import progress_on_standard_error
from attnscope.errors import AttnScopeError, SettingError
from attnscope.version import __version__

if TYPE_CHECKING:
    from rich.progress import Progress

    from attnscope.labs import Decision, Result


def lab_names() -> tuple[str, ...]:
    """All labs."""
    from attnscope.labs.catalogue import NAMES

    return NAMES


def exercise_names() -> tuple[str, ...]:
    """All exercises."""
    from attnscope.labs.exercises import NAMES

    return NAMES


class ExerciseFile(click.Path):
    """A file, or the name of an exercise, which a shell completes too."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Exercises that start like this, or else files."""
        found = Name("exercise", exercise_names).shell_complete(ctx, param, incomplete) if incomplete else []
        return found or super().shell_complete(ctx, param, incomplete)


lab = make_group(
    "lab",
    about="run experiments and exercises about attention",
    description="Run experiments that test claims about attention, and exercises that check your code.",
    examples=["attnscope lab list", "attnscope lab run two_relations", "attnscope lab exercise causal_mask"],
)


@command(
    "list",
    group=lab,
    about="list all labs and exercises, and the claims that they test",
    examples=["attnscope lab list"],
)
def show_list(_: Options) -> None:
    """Print what there is."""
    from rich.console import Console

    from attnscope.labs.listing import exercises, experiments
    from attnscope.labs.printing import show_table
    from attnscope.labs.result import Table

    forgive_signs()
    console = Console()
    rows = tuple((lab.name, lab.question, " ".join(lab.claims), lab.seconds) for lab in experiments())
    columns = ("lab", "question", "claims decided", "seconds")
    show_table(
        Table(title="", columns=columns, rows=rows, note="seconds: about, at the small size on one core"), console
    )
    console.file.write("\n")
    show_table(Table(title="", columns=("exercise", "about"), rows=tuple(exercises())), console)


@command(
    "run",
    group=lab,
    about="run a lab, or all; exit code 1 if a claim is not settled",
    examples=["attnscope lab run two_relations --out results"],
)
@argument("name", type=Name("lab", lambda: (*lab_names(), "all")), about="a lab from attnscope lab list, or all")
@option("--seed", type=int, default=0, metavar="N", about="random seed (default: 0)")
@option(
    "--size",
    type=Name("size", ("small", "full")),
    default="small",
    metavar="small|full",
    about="small takes up to two minutes (default: small)",
)
@option("--out", type=click.Path(), metavar="DIR", about="also write DIR/NAME/result.json and its figures")
@option("--model", type=click.Path(), metavar="MODEL", about="a folder or a name on the hub, instead of SmolLM2-135M")
def run(options: Options) -> int:
    """Run one or all, print and write; the exit code is 1 where a claim is not settled."""
    from rich.console import Console

    from attnscope.labs.printing import show

    forgive_signs()
    if options.out is not None and Path(options.out).exists() and not Path(options.out).is_dir():
        raise SettingError(f"lab: --out {options.out} is a file; give a folder")
    if options.name == "all":
        return run_all(options)
    with progress_on_standard_error() as bar:
        result = run_one(options.name, options, bar)
    show(result, Console())
    if options.out is not None:
        print(f"written to {Path(options.out) / result.name}", file=sys.stderr)
    return 1 if result.unsettled else 0


def run_all(options: Options) -> int:
    """Run every lab, go on where one cannot run, and print all verdicts, and the numbers that settle nothing."""
    from rich.console import Console

    from attnscope.labs import CLAIMS, NAMES
    from attnscope.labs.printing import show, show_table
    from attnscope.labs.result import Table

    results: list[Result] = []
    missing: dict[str, str] = {}
    with progress_on_standard_error() as bar:
        whole = bar.add_task("", total=len(NAMES))
        for number, name in enumerate(NAMES, 1):
            bar.update(whole, description=f"lab {number} of {len(NAMES)}", completed=number - 1)
            try:
                results.append(run_one(name, options, bar))
            except AttnScopeError as error:
                missing[name] = " ".join(str(error).split())
    found = {decision.claim: (decision, result.name) for result in results for decision in result.decisions}
    decided = [found[claim] for claim in CLAIMS if claim in found]
    if options.out is not None:
        write(Path(options.out) / "summary.json", json.dumps(summary(options, decided, missing), indent=1) + "\n")
    rows = tuple((one.claim, CLAIMS[one.claim].text, one.words, lab) for one, lab in decided)
    console = Console()
    show_table(Table(title="", columns=("claim", "what is said", "verdict", "lab"), rows=rows), console)
    unsettled = [result for result in results if result.unsettled]
    for result in unsettled:
        console.file.write("\n")
        show(replace(result, findings=list(result.unsettled)), console)
    for name, reason in missing.items():
        print(f"attnscope: lab {name} did not run: {reason}", file=sys.stderr)
    return 1 if missing or unsettled else 0


def run_one(name: str, options: Options, bar: Progress) -> Result:
    """Run a lab while a bar says what it is at, and write what was asked for."""
    from attnscope.labs import run as run_lab

    task = bar.add_task(name, total=None)
    try:
        result = run_lab(
            name,
            size=options.size,
            seed=options.seed,
            model=options.model,
            step=lambda what: bar.update(task, description=f"{name}: {what}"),
        )
    finally:
        bar.remove_task(task)
    if options.out is not None:
        with writing(options.out, asked_by="lab"):
            result.write(Path(options.out) / name)
    return result


def summary(options: Options, decided: list[tuple[Decision, str]], missing: dict[str, str]) -> Any:
    """All verdicts, for machines."""
    return {
        "attnscope": __version__,
        "size": options.size,
        "seed": options.seed,
        "claims": [
            {"claim": one.claim, "verdict": one.verdict, "when": one.when, "because": one.because, "lab": lab}
            for one, lab in decided
        ],
        "not_run": missing,
    }


@command(
    "notebook",
    group=lab,
    about="write a lab as a Jupyter notebook, to run cell by cell",
    examples=["attnscope lab notebook two_relations"],
)
@argument("name", type=Name("lab", lab_names), about="a lab from attnscope lab list")
@argument("file", required=False, about="the file to write (default: NAME.ipynb); - prints it")
def write_notebook(options: Options) -> None:
    """Write a lab as a notebook."""
    from attnscope.labs.notebooks import notebook

    text = json.dumps(notebook(options.name), indent=1, ensure_ascii=False) + "\n"
    if file := new_file(options.file or f"{options.name}.ipynb", text):
        print(f"{file} is written. Open it with: jupyter lab {file}")


@command(
    "exercise",
    group=lab,
    about="write the file that an exercise starts with",
    examples=["attnscope lab exercise causal_mask mask.py"],
)
@argument("name", type=Name("exercise", exercise_names), about="an exercise from attnscope lab list")
@argument("file", required=False, about="the file to write (default: NAME.py); - prints it")
def write_starter(options: Options) -> None:
    """Write the file of an exercise, and say how to go on."""
    from attnscope.labs.exercise import starter

    text = starter(options.name)
    if file := new_file(options.file or f"{options.name}.py", text):
        print(f"{file} is written. Read it, fill it in, then: attnscope lab check {file}")


@command(
    "check",
    group=lab,
    about="check an answer; exit code 1 if it is wrong",
    examples=["attnscope lab check mask.py"],
)
@argument("file", about="the file of an exercise, with your answer")
@option("--seconds", type=float, default=120.0, metavar="N", about="time limit (default: 120)")
def check(options: Options) -> int:
    """Say in words what is wrong with an answer, after what it printed itself."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.labs.checking import check_file

    forgive_signs()
    with progress_on_standard_error() as bar:
        bar.add_task("checking your answer", total=None)
        outcome = check_file(options.file, options.seconds)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if outcome.printed:
        console.print(Text("your answer printed:", "dim"), Text(outcome.printed.rstrip("\n")), sep="\n", end="\n\n")
    is_said = outcome.words.lower().startswith(outcome.kind.lower())
    not_yet = "Not yet." if is_said else f"Not yet: {outcome.kind}."
    console.print(Text("Right.", "bold green") if outcome.is_right else Text(not_yet, "bold red"))
    if outcome.words:
        console.print(Text(outcome.words))
    if not outcome.is_right:
        console.print(Text(f"For a hint: attnscope lab hint {options.file}", "dim"))
    return 0 if outcome.is_right else 1


@command(
    "hint",
    group=lab,
    about="print a hint for an exercise",
    examples=["attnscope lab hint mask.py", "attnscope lab hint causal_mask 2"],
)
@argument("file", type=ExerciseFile(), about="the file of an exercise, or its name")
@argument("number", type=int, required=False, default=1, metavar="N", about="which hint (default: 1)")
def show_hint(options: Options) -> None:
    """Print one hint."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.labs.exercise import hint

    forgive_signs()
    Console(soft_wrap=not sys.stdout.isatty()).print(Text(hint(options.file, options.number)))


def new_file(place: str, text: str) -> Path | None:
    """Write a file that was not there before, and return it; or print the text, if the place is -."""
    if place == "-":
        forgive_signs()
        print(text, end="")
        return None
    path = Path(place)
    if path.exists():
        raise SettingError(f"lab: {path} already exists, and may hold your work; give another FILE, or remove it")
    write(path, text)
    return path


def write(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    with writing(path, asked_by="lab"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def forgive_signs() -> None:
    """Let a terminal that cannot write a sign show the rest."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
