"""Run the tests on several versions of Python, torch and transformers, and write the table of docs/support.md.

There is one virtual environment per Python and torch, in a cache folder; transformers is switched inside it. A run may
be restricted to some versions: the other rows of the table stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "attnscope" / "compat"
PAGE = ROOT / "docs" / "support.md"
BEGIN, END = "<!-- made by scripts/compat -->", "<!-- end of scripts/compat -->"
TESTS = ("tests/attention", "tests/matrix", "tests/recording", "tests/heads", "tests/images/test_timm.py")
EXTRAS = ("models", "record", "figures", "tables")  # what these tests import
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "accelerate", "peft", "diffusers", "triton")
LIBRARIES = ("timm",)  # its torchvision fits one version of torch only, so it is not in the test group
OLDEST_PYTHON = (3, 11)
WARNINGS_AS_USUAL = ("-o", "filterwarnings=default")  # other versions deprecate other things


class Versions(NamedTuple):
    """One environment: versions of Python (major.minor), torch and transformers."""

    python: str
    torch: str
    transformers: str


def main() -> None:
    """Run what was asked for, one environment after the other."""
    options = parse()
    CACHE.mkdir(parents=True, exist_ok=True)
    pythons = find_pythons()
    chosen = options.python or sorted(pythons, key=as_numbers)
    torches = options.torch or [oldest("torch"), tested("torch"), newest("torch")]
    transformers = options.transformers or [oldest("transformers"), newest("transformers")]
    combinations = [
        Versions(python, torch, library)
        for python in chosen
        for torch in dict.fromkeys(torches)
        for library in dict.fromkeys(transformers)
    ]
    for number, versions in enumerate(combinations, 1):
        print_line(f"{number}/{len(combinations)} Python {versions.python}, torch {versions.torch}, ", end="")
        print_line(f"transformers {versions.transformers}", timed=False)
        result = run(versions, pythons, options)
        print_line(f"  {result}")
        if not options.tests and not options.expression:
            text = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(with_result(text, versions, result), encoding="utf-8")


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/compat", description=__doc__)
    parser.add_argument("--python", action="append", help="a version such as 3.12; every one found, if not given")
    parser.add_argument("--torch", action="append", help="a version; oldest, tested and newest, if not given")
    parser.add_argument("--transformers", action="append", help="a version; the oldest and the newest, if not given")
    parser.add_argument("--tests", nargs="+", help="files or folders to run; the table is left as it is")
    parser.add_argument("-k", dest="expression", help="choose tests by name as pytest does; the table is left as it is")
    parser.add_argument("--processes", default="1", help="test processes at a time")
    return parser.parse_args()


def find_pythons() -> dict[str, Path]:
    """An interpreter for each version from 3.11 on, from PATH and from pyenv."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    candidates = [path for folder in folders if folder.name != "shims" for path in folder.glob("python3.[0-9]*")]
    candidates += (Path.home() / ".pyenv" / "versions").glob("*/bin/python3")
    found: dict[str, Path] = {}
    for path in candidates:
        code = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
        answer = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        version = answer.stdout.strip()
        if answer.returncode == 0 and as_numbers(version) >= OLDEST_PYTHON:
            found.setdefault(version, path)
    return found


def run(versions: Versions, pythons: dict[str, Path], options: argparse.Namespace) -> str:
    """Prepare the environment, run the tests, and return the result in words."""
    if versions.python not in pythons:
        return f"not run: no Python {versions.python} on this machine"
    python = environment(versions, pythons[versions.python])
    if python is None:
        return "not run: pip finds no such combination"
    name = f"python{versions.python}-torch{versions.torch}-transformers{versions.transformers}"
    report, log = CACHE / f"{name}.xml", CACHE / f"{name}.log"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *WARNINGS_AS_USUAL, f"--junit-xml={report}"]
    command += ["-m", "not timed and not slow and not alone", *(options.tests or TESTS)]
    command += ["-k", options.expression] if options.expression else []
    command += ["-n", options.processes, "--dist", "worksteal"] if options.processes != "1" else []
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    report.unlink(missing_ok=True)
    with log.open("w") as stream:
        subprocess.run(command, cwd=ROOT, env=variables, stdout=stream, stderr=subprocess.STDOUT, check=False)
    return summarize(report) if report.exists() else f"not run: pytest ended early, see {log.name}"


def environment(versions: Versions, base: Path) -> Path | None:
    """The interpreter of an environment that has these versions; None if pip cannot install them together."""
    folder = CACHE / f"python{versions.python}-torch{versions.torch}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", folder], check=True)
    wanted = "\n".join([f"torch=={versions.torch}", *requirements()])
    if not is_current(folder / "stamp", wanted):
        print_line("  installing torch and what the tests need")
        if not pip(python, *wanted.split("\n")):
            return None
        (folder / "stamp").write_text(wanted)
    print_line("  installing transformers")
    return python if pip(python, f"torch=={versions.torch}", f"transformers=={versions.transformers}") else None


def pip(python: Path, *wanted: str) -> bool:
    """Whether pip could install these."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        print_line("  " + "\n  ".join(line for line in answer.stderr.splitlines() if line.startswith("ERROR")))
    return answer.returncode == 0


def requirements() -> list[str]:
    """What the tests need beside torch and transformers, as pyproject.toml declares it."""
    project = declared()["project"]
    listed = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    return [one for one in listed if name_of(one) not in ("torch", "transformers")] + [*TOOLS, *LIBRARIES]


def oldest(package: str) -> str:
    """The lower bound of a package in pyproject.toml, as a version with three numbers."""
    project = declared()["project"]
    listed = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    bound = next(one for one in listed if name_of(one) == package).partition(">=")[2].partition(",")[0]
    return ".".join([*bound.split("."), "0", "0"][:3])


def tested(package: str) -> str:
    """The version in constraints.txt, which all other tests run with."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if name_of(line) == package)


def newest(package: str) -> str:
    """The newest release on the package index."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
    answer = subprocess.run([*command, "--report", "-", package], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout)["install"][0]["metadata"]["version"].partition("+")[0]


def declared() -> dict:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    """The package that a requirement or constraint names."""
    return re.split(r"[^\w.-]", requirement)[0]


def summarize(report: Path) -> str:
    """The counts of a JUnit report in words."""
    suite = next(iter(ElementTree.parse(report).getroot().iter("testsuite")))  # noqa: S314 - pytest wrote it
    total, failed, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "skipped"))
    failed += int(suite.attrib["errors"])
    words = f"{total - failed - skipped:,} passed"
    return words + f", {failed:,} failed" * bool(failed) + f", {skipped:,} skipped" * bool(skipped)


def with_result(text: str, versions: Versions, result: str) -> str:
    """The page with one more result in its table, or with a new result for versions that it has."""
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before + "\n".join([BEGIN, *table(read_table(inside) | {versions: result}), END]) + after


def read_table(text: str) -> dict[Versions, str]:
    """The results in the lines that `table` writes."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return {Versions(*cells[:3]): cells[3] for cells in rows[2:]}


def table(results: dict[Versions, str]) -> list[str]:
    """The lines of the table, oldest versions first."""
    lines = ["| Python | torch | transformers | tests |", "|---|---|---|---|"]
    ordered = sorted(results, key=lambda versions: [as_numbers(one) for one in versions])
    return lines + [f"| {' | '.join(versions)} | {results[versions]} |" for versions in ordered]


def is_current(stamp: Path, wanted: str) -> bool:
    """Whether a stamp file holds this text."""
    return stamp.exists() and stamp.read_text() == wanted


def as_numbers(version: str) -> tuple[int, ...]:
    """A version to sort by.

    >>> as_numbers("2.13.0") > as_numbers("2.6.0")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", version))


def print_line(text: str, *, end: str = "\n", timed: bool = True) -> None:
    """Print a line of progress at once."""
    print(time.strftime("%H:%M:%S ") * timed + text, end=end, flush=True)


if __name__ == "__main__":
    main()
