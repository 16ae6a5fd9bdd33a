"""Help is short, every command shows an example, and every example is one that the command line takes."""

from __future__ import annotations

import re
import resource
import shlex
import subprocess
import sys

import pytest

from attnscope.bench import NAMES
from attnscope.cli.main import SECTIONS, main
from attnscope.heads import LABELS
from tests.cli.parsing import all_commands, context_of, parsed

COMMANDS = dict(all_commands())
WIDTH = 80
SECONDS = 0.4


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def help_of(name: str) -> str:
    with context_of(name) as context:
        return context.get_help()


def examples_in(text: str) -> list[str]:
    """The commands at the end of a help page."""
    found = re.search(r"^Examples?:\n((?:  .+(?:\n|\Z))+)\Z", text, re.MULTILINE)
    return [] if found is None else [line.strip() for line in found[1].splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_are_understood(name: str) -> None:
    examples = examples_in(help_of(name))
    assert examples
    for example in examples:
        inner = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example)
        program, *arguments = shlex.split(inner, comments=True)
        assert program == "attnscope"
        assert example.startswith(f"attnscope {name}".rstrip()) or inner != example
        parsed(arguments)


def test_a_help_without_an_example_is_found_out() -> None:
    assert examples_in("Usage: nothing\n\nNo example.\n") == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal_and_its_usage_has_one_line(name: str) -> None:
    lines = help_of(name).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].startswith(f"Usage: attnscope {name}".rstrip() + " [OPTIONS]")
    assert lines[1] == ""


def test_every_command_is_listed_once_in_its_section() -> None:
    listed = re.findall(r"^  (\w+) +\S", help_of("").partition("\nOptions:")[0], re.MULTILINE)[1:]  # after the title
    assert listed == [name for names in SECTIONS.values() for name in names]
    assert {name for name in COMMANDS if name and " " not in name} == set(listed)


@pytest.mark.parametrize("group", ["", "lab", "survey"])
def test_a_bare_group_prints_its_help_and_succeeds(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(group.split()) == 0
    assert capsys.readouterr() == (help_of(group) + "\n", "")


def test_bench_without_a_name_lists_all_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert capsys.readouterr().out.split() == list(NAMES)


def test_labels_are_those_of_the_library() -> None:
    from attnscope.cli.heads import LABELS as NAMED

    assert tuple(label.name for label in LABELS) == NAMED


def run_light(*commands: list[str], first: str = "") -> str:
    """The heavy modules that are loaded after some commands, in a process of its own that runs `first` before them."""
    program = (
        f"{first}\nimport sys; from attnscope.cli.main import main\n"
        f"for command in {list(commands)}: assert main(command) == 0\n"
        "print({'torch', 'numpy', 'transformers'} & set(sys.modules), file=sys.stderr)"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr


def test_help_and_lists_do_not_load_torch() -> None:
    everything = [[*name.split(), "--help"] for name in COMMANDS]
    assert run_light(*everything, ["lab", "list"], ["bench"], ["completion", "bash"]) == "set()\n"


def test_a_module_that_is_loaded_is_noticed() -> None:
    assert "numpy" in run_light(["completion", "bash"], first="import numpy")


@pytest.mark.timed
@pytest.mark.parametrize("arguments", [["--help"], ["heads", "--help"], ["lab", "list"], ["bench"]], ids=" ".join)
def test_help_and_lists_take_little_time(arguments: list[str]) -> None:
    used = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "attnscope.cli.main", *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) < SECONDS, used
