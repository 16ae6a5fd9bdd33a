"""`attnscope lab`: run experiments about attention, and check answers to exercises."""

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
from attnscope.cli.output_paths import report_write_errors
from attnscope.cli.progress import stderr_progress
from attnscope.errors import AttnScopeError, SettingError
from attnscope.version import __version__

if TYPE_CHECKING:
    from rich.progress import Progress

    from attnscope.labs import Decision, Result
    from attnscope.labs.exercise import Outcome


def lab_names() -> tuple[str, ...]:
    """Return the names of all labs."""
    from attnscope.labs.catalogue import NAMES

    return NAMES


def exercise_names() -> tuple[str, ...]:
    """Return the names of all exercises."""
    from attnscope.labs.exercises import NAMES

    return NAMES


class ExerciseFile(click.Path):
    """A file, or the name of an exercise, both with shell completion."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the exercises that start with the text, else files."""
        found = Name("exercise", exercise_names).shell_complete(ctx, param, incomplete) if incomplete else []
        return found or super().shell_complete(ctx, param, incomplete)


lab = make_group(
    "lab",
    about="run experiments and exercises about attention",
    description="Run experiments that test claims about attention, and exercises that check your code.",
    examples=["attnscope lab list", "attnscope lab run scaling", "attnscope lab exercise causal_mask"],
)


@command(
    "list",
    group=lab,
    about="list all labs and exercises, and the claims that they test",
    examples=["attnscope lab list"],
)
def show_list(_: Options) -> None:
    """Print all labs and exercises."""
    from rich.console import Console

    from attnscope.labs.listing import exercises, experiments
    from attnscope.labs.printing import show_table
    from attnscope.labs.result import Table

    replace_unprintable()
    console = Console()
    rows = tuple((lab.name, lab.title, " ".join(lab.claims), lab.seconds) for lab in experiments())
    columns = ("lab", "topic", "claims", "seconds")
    show_table(
        Table(title="", columns=columns, rows=rows, note="seconds: approximate, at the small size on one core"), console
    )
    console.file.write("\n")
    columns = ("exercise", "topic", "difficulty", "minutes")
    show_table(Table(title="", columns=columns, rows=tuple(exercises())), console)


@command(
    "run",
    group=lab,
    about="run a lab, or all; exit code 1 if a verdict is inconclusive",
    examples=["attnscope lab run scaling --out results"],
)
@argument("name", type=Name("lab", lambda: (*lab_names(), "all")), about="a lab from attnscope lab list, or all")
@option("--seed", type=int, default=0, metavar="N", about="random seed (default: 0)")
@option(
    "--size",
    type=Name("size", ("small", "full")),
    default="small",
    metavar="small|full",
    about="small takes seconds to some minutes (default: small)",
)
@option("--out", type=click.Path(), metavar="DIR", about="also write DIR/NAME/result.json and its figures")
@option(
    "--model",
    type=click.Path(),
    metavar="MODEL",
    about="a folder, GGUF file, hub name or downloaded model, instead of SmolLM2-135M-Instruct",
)
def run(options: Options) -> int:
    """Run one lab or all; return 1 if a verdict is inconclusive."""
    from rich.console import Console

    from attnscope.labs.printing import show

    replace_unprintable()
    if options.out is not None and Path(options.out).exists() and not Path(options.out).is_dir():
        raise SettingError(f"lab: --out {options.out} is a file; expected a folder")
    if options.name == "all":
        return run_all(options)
    with stderr_progress() as bar:
        result = run_one(options.name, options, bar)
    show(result, Console())
    if options.out is not None:
        print(f"written to {Path(options.out) / result.name}", file=sys.stderr)
    return 1 if result.inconclusive else 0


def run_all(options: Options) -> int:
    """Run every lab that can run here; print all verdicts, and the measurements of inconclusive ones."""
    from rich.console import Console

    from attnscope.labs import CLAIMS, NAMES
    from attnscope.labs.printing import show, show_table
    from attnscope.labs.result import Table

    results: list[Result] = []
    missing: dict[str, str] = {}
    with stderr_progress() as bar:
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
    rows = tuple((one.claim, CLAIMS[one.claim].text, one.text, lab) for one, lab in decided)
    console = Console()
    show_table(Table(title="", columns=("claim", "text", "verdict", "lab"), rows=rows), console)
    inconclusive = [result for result in results if result.inconclusive]
    for result in inconclusive:
        console.file.write("\n")
        show(replace(result, findings=list(result.inconclusive)), console)
    for name, reason in missing.items():
        print(f"attnscope: lab {name} did not run: {reason}", file=sys.stderr)
    return 1 if missing or inconclusive else 0


def run_one(name: str, options: Options, bar: Progress) -> Result:
    """Run a lab with a progress bar, and write its files."""
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
        with report_write_errors(options.out, command_name="lab"):
            result.write(Path(options.out) / name)
    return result


def summary(options: Options, decided: list[tuple[Decision, str]], missing: dict[str, str]) -> Any:
    """Return all verdicts as JSON values."""
    return {
        "attnscope": __version__,
        "size": options.size,
        "seed": options.seed,
        "claims": [
            {"claim": one.claim, "verdict": one.verdict, "condition": one.condition, "reason": one.reason, "lab": lab}
            for one, lab in decided
        ],
        "not_run": missing,
    }


@command(
    "notebook",
    group=lab,
    about="write a lab as a Jupyter notebook, to run cell by cell",
    examples=["attnscope lab notebook scaling"],
)
@argument("name", type=Name("lab", lab_names), about="a lab from attnscope lab list")
@argument("file", required=False, about="the file to write (default: NAME.ipynb); - prints it")
def write_notebook(options: Options) -> None:
    """Write a lab as a notebook."""
    from attnscope.labs.notebooks import notebook

    text = json.dumps(notebook(options.name), indent=1, ensure_ascii=False) + "\n"
    if file := new_file(options.file or f"{options.name}.ipynb", text):
        print(f"Wrote {file}. Open it with: jupyter lab {file}")


@command(
    "exercise",
    group=lab,
    about="write the starter file of an exercise",
    examples=["attnscope lab exercise causal_mask mask.py"],
)
@argument("name", type=Name("exercise", exercise_names), about="an exercise from attnscope lab list")
@argument("file", required=False, about="the file to write (default: NAME.py); - prints it")
def write_starter(options: Options) -> None:
    """Write the starter file of an exercise, and print the next step."""
    from attnscope.labs.exercise import starter

    text = starter(options.name)
    if file := new_file(options.file or f"{options.name}.py", text):
        print(f"Wrote {file}. Fill it in, then run: attnscope lab check {file}")


@command(
    "check",
    group=lab,
    about="check an answer; exit code 1 if it is wrong",
    examples=["attnscope lab check mask.py"],
)
@argument("file", about="the file with your answer")
@option("--seconds", type=float, default=120.0, metavar="N", about="time limit (default: 120)")
def check(options: Options) -> int:
    """Print the output of an answer, and the feedback."""
    from rich.console import Console
    from rich.text import Text

    replace_unprintable()
    outcome = check_with_progress(options)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if outcome.printed:
        console.print(Text("your answer printed:", "dim"), Text(outcome.printed.rstrip("\n")), sep="\n", end="\n\n")
    is_repeated = outcome.message.lower().startswith(outcome.kind.lower())
    mistake = "Not yet." if is_repeated else f"Not yet: {outcome.kind}."
    console.print(Text("Correct.", "bold green") if outcome.is_correct else Text(mistake, "bold red"))
    if outcome.message:
        console.print(Text(outcome.message))
    further = "Our solution: attnscope lab solution" if outcome.is_correct else "For a hint: attnscope lab hint"
    console.print(Text(f"{further} {options.file}", "dim"))
    return 0 if outcome.is_correct else 1


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

    replace_unprintable()
    Console(soft_wrap=not sys.stdout.isatty()).print(Text(hint(options.file, options.number)))


@command(
    "solution",
    group=lab,
    about="print our solution of an exercise, if your answer is correct",
    examples=["attnscope lab solution mask.py"],
)
@argument("file", about="the file with your answer")
@option("--seconds", type=float, default=120.0, metavar="N", about="time limit (default: 120)")
def show_solution(options: Options) -> int:
    """Check an answer again, and print the solution only if it is correct."""
    from attnscope.labs.exercise import solution

    replace_unprintable()
    outcome = check_with_progress(options)
    if not outcome.is_correct:
        print(f"The solution is shown once your answer is correct. Run: attnscope lab check {options.file}")
        return 1
    print(solution(outcome.exercise), end="")
    return 0


def check_with_progress(options: Options) -> Outcome:
    """Check the answer in `options.file`."""
    from attnscope.labs.checking import check_file

    with stderr_progress() as bar:
        bar.add_task("checking your answer", total=None)
        return check_file(options.file, options.seconds)


def new_file(file: str, text: str) -> Path | None:
    """Write a new file and return its path; print the text if the file is -."""
    if file == "-":
        replace_unprintable()
        print(text, end="")
        return None
    path = Path(file)
    if path.exists():
        raise SettingError(f"lab: {path} already exists; give another FILE, or delete it")
    write(path, text)
    return path


def write(path: Path, text: str) -> None:
    """Write a file, and create its parent folders."""
    with report_write_errors(path, command_name="lab"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def replace_unprintable() -> None:
    """Print a replacement for characters that the terminal cannot encode."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
