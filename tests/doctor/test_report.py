"""The report reads well on a terminal, and every line of it can be cut at its tab elsewhere."""

import io
import os
import subprocess
import sys

import torch
from rich.console import Console

from attnscope.doctor import show
from attnscope.doctor.report import SECTIONS
from attnscope.extras import EXTRAS
from attnscope.version import __version__

MODULES = sorted({module for modules in EXTRAS.values() for module in modules} - {"jinja2"})  # torch loads that itself


def piped() -> list[str]:
    pipe = io.StringIO()
    show(Console(file=pipe, width=20))
    return pipe.getvalue().splitlines()


def test_a_pipe_gets_one_plain_line_a_fact_and_no_name_twice() -> None:
    lines = dict(line.split("\t") for line in piped())
    assert len(lines) == sum(len(look()) for look in SECTIONS.values())
    assert lines["attnscope"] == __version__
    assert lines["torch"] == torch.__version__
    assert "transformers" in lines["[record]"]
    assert lines["as queries and keys"].endswith(" kB per token")


def test_a_terminal_gets_titles_and_keeps_to_its_width() -> None:
    screen = io.StringIO()
    show(Console(file=screen, force_terminal=True, color_system=None, width=80))
    lines = screen.getvalue().splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == list(SECTIONS)
    assert max(map(len, lines)) <= 80
    assert "[models]" in screen.getvalue()


def test_threads_are_those_that_this_process_has() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "attnscope.cli.main", "doctor"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    lines = dict(line.split("\t") for line in result.stdout.splitlines())
    assert lines["OMP_NUM_THREADS"] == "1"
    assert lines["torch threads"].startswith("1 in an operation, ")


def test_the_doctor_loads_no_extra() -> None:
    program = (
        "import sys; from rich.console import Console; from attnscope import doctor; doctor.show(Console()); "
        f"print(set({MODULES}) & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "set()"
