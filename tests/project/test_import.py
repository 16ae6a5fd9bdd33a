"""Importing AttnScope is light, and a missing extra is named with the command that installs it."""

import subprocess
import sys

import pytest

from attnscope.extras import EXTRAS

MODULES = {module for modules in EXTRAS.values() for module in modules}

# Imports every module of the package while no extra can be found; only MissingExtraError may come of that.
IMPORT_ALL_WITHOUT_EXTRAS = """
import importlib, importlib.abc, pkgutil, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import attnscope
from attnscope.errors import MissingExtraError
for module in pkgutil.walk_packages(attnscope.__path__, "attnscope.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except MissingExtraError as error:
        assert "pip install" in str(error)
"""


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running the code."""
    program = f"{code}\nimport sys\nprint(*(name.partition('.')[0] for name in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(answer.stdout.split())


def test_importing_attnscope_loads_no_extra() -> None:
    assert modules_after("import attnscope") & MODULES == set()


@pytest.mark.parametrize("module", ["safetensors", "jinja2"])
def test_the_probe_sees_an_extra_that_is_loaded(module: str) -> None:
    assert module in modules_after(f"import attnscope, {module}") & MODULES


def test_without_extras_every_module_imports_or_names_what_is_missing() -> None:
    program = IMPORT_ALL_WITHOUT_EXTRAS.format(modules=sorted(MODULES))
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_named_with_the_command(extra: str) -> None:
    module = EXTRAS[extra][0]
    absent = f"import sys; sys.modules[{module!r}] = None"
    program = f"{absent}; from attnscope.extras import import_extra; import_extra({module!r})"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.returncode == 1
    assert f"MissingExtraError: {module} is needed" in answer.stderr
    assert f'pip install "attnscope[{extra}]"' in answer.stderr
