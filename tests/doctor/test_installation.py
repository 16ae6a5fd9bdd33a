"""The doctor reports what is installed without loading it."""

import io
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from sightline.doctor import installation as doctor
from sightline.extras import EXTRAS


def test_every_extra_is_reported() -> None:
    assert list(doctor.extras()) == [f"[{extra}]" for extra in EXTRAS]


def test_a_missing_package_is_called_missing() -> None:
    assert doctor.version_or_missing("a-package-that-is-not-there") == "missing"


def test_a_pipe_gets_one_plain_line_a_fact() -> None:
    pipe = io.StringIO()
    doctor.show(Console(file=pipe))
    lines = dict(line.split("\t") for line in pipe.getvalue().splitlines())
    assert lines["torch"] == torch.__version__
    assert "transformers" in lines["[record]"]


def test_a_terminal_gets_a_table_with_the_names_of_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    doctor.show(Console(file=screen, force_terminal=True, width=200))
    assert "[models]" in screen.getvalue()
    assert "┃" in screen.getvalue()


def test_the_doctor_loads_no_extra() -> None:
    modules = [module for modules in EXTRAS.values() for module in modules]
    program = f"import sys; from sightline import doctor; doctor.show; print(set({modules}) & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "set()"
