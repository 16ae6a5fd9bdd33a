"""Help is short, every command shows an example, and every example is one that the command line takes."""

import argparse
import re
import shlex
import subprocess
import sys

import pytest

from attnscope.bench import NAMES
from attnscope.cli import main as command
from attnscope.cli.candidates import inner_parsers
from attnscope.cli.main import build_parser, in_words

COMMANDS = {"": build_parser()} | dict(inner_parsers(build_parser()))
WIDTH = 80


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def examples_in(parser: argparse.ArgumentParser) -> list[str]:
    """The commands at the end of a help."""
    found = re.search(r"^examples?:\n((?:  .+\n)+)\Z", parser.format_help(), re.MULTILINE)
    return [] if found is None else [line.strip() for line in found[1].splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_are_understood(name: str) -> None:
    examples = examples_in(COMMANDS[name])
    assert examples
    for example in examples:
        inner = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example)
        program, *arguments = shlex.split(inner, comments=True)
        assert program == "attnscope"
        assert example.startswith(f"attnscope {name}".rstrip()) or inner != example
        if "--help" not in arguments:
            build_parser().parse_args(in_words(arguments))


def test_a_help_without_an_example_is_found_out() -> None:
    assert examples_in(argparse.ArgumentParser(prog="nothing", epilog="no example")) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_no_wall_of_text(name: str) -> None:
    lines = COMMANDS[name].format_help().splitlines()
    assert max(map(len, lines)) <= WIDTH
    usage = next(at for at, line in enumerate(lines) if not line)
    assert usage <= 2, "the usage names what has to be given, and no more"


def test_every_command_is_listed_once_under_what_one_wants() -> None:
    listed = re.findall(r"^  (\w+) +\S", COMMANDS[""].description or "", re.MULTILINE)
    modules = [module.__name__.rpartition(".")[2] for group in command.GROUPS.values() for module in group]
    assert listed == modules
    assert {name for name in COMMANDS if name and " " not in name} == set(listed)


def test_bench_without_a_name_lists_what_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["bench"]) == 0
    assert capsys.readouterr().out.split() == list(NAMES)


def test_help_loads_neither_torch_nor_rich() -> None:
    program = (
        "import sys; from attnscope.cli.main import build_parser; build_parser().format_help(); "
        "print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"
