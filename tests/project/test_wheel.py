"""The wheel holds what it should, and what a base installation of it promises is kept in an environment of its own.

One environment is made for all of these tests, also where several processes run them, and torch is installed into it
by pip as a user would: from wherever pip is told to look, which may be its cache.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest
from filelock import FileLock

from attnscope.extras import EXTRAS
from attnscope.version import __version__

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "attnscope"
MOST_BYTES = 2_000_000
CORE = {"torch", "numpy", "rich"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}

# Runs the blocks of a page that can be run without extras, and counts them.
RUN_BLOCKS = """
import re, sys
from attnscope.errors import MissingExtraError
fence = re.compile(r"^```python\\n(.*?)^```", re.DOTALL | re.MULTILINE)
names, ran, refused = {}, 0, []
for block in fence.findall(open(sys.argv[1], encoding="utf-8").read()):
    try:
        exec(block, names)
        ran += 1
    except MissingExtraError as error:
        refused.append(str(error))
print(ran, *refused, sep="\\n")
"""

NEED_AN_EXTRA = {
    "models": "from attnscope.models import load; load('somebody/something')",
    "record": "from attnscope.record import load; load('.', using='transformers')",
    "figures": "from attnscope.figures import heatmap; heatmap(matrix)",
    "tables": "from attnscope.heads import score_heads; score_heads(trace, progress=False).to_pandas()",
    "train": "from attnscope.train.data.documents import read_documents; list(read_documents(['a.parquet']))",
    "survey": "main(['survey', 'show', '.'])",
    "explore": "main(['explore', '--no-browser'])",
}

# Asks for everything that needs an extra, and writes down what is answered.
ASK = """
import contextlib, io, json, sys, torch
from attnscope import AttentionMatrix, Trace
from attnscope.cli.main import main
from attnscope.errors import MissingExtraError
trace = Trace.from_attentions([torch.eye(4)[None, None]])
matrix = AttentionMatrix.from_dense(torch.eye(4)[None, None]).batch(0).head(0)
open("a.parquet", "w").close()
answers = {}
for extra, question in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            exec(question)
        except MissingExtraError as error:
            print(error, file=sys.stderr)
    answers[extra] = said.getvalue()
print(json.dumps(answers))
"""


def run(*command: str | Path, check: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in the environment of a user who is offline and has set nothing about Python."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | OFFLINE
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def made_once(name: str, make: Callable[[Path], None], factory: pytest.TempPathFactory) -> Path:
    """A folder that the first of all test processes fills, while others wait for it."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as its users' tools build it, which takes a package index."""

    def build(folder: Path) -> None:
        look = ("install", "--quiet", "--dry-run", "--retries", "0", "--ignore-installed", "--no-deps", "hatchling")
        if run(sys.executable, "-m", "pip", *look, check=False).returncode and "CI" not in os.environ:
            pytest.skip("no package index can be reached, from which an environment could be filled")
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)

    (found,) = made_once("wheel", build, tmp_path_factory).glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment into which pip has put the wheel and what it requires."""

    def install(folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
        run(*pip, "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", wheel)

    return made_once("installed", install, tmp_path_factory) / "bin"


def files_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def required(metadata: str) -> set[str]:
    """The distributions that a package needs whatever extras are asked for."""
    lines = Parser().parsestr(metadata).get_all("Requires-Dist") or []
    return {re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line}


def test_the_wheel_is_the_package_and_nothing_else(wheel: Path) -> None:
    files = files_of(wheel)
    inside = {name.removeprefix("attnscope/"): data for name, data in files.items() if name.startswith("attnscope/")}
    written = {
        str(path.relative_to(SOURCE)): path.read_bytes()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == written
    outside = {name.partition("/")[0] for name in files.keys() - {f"attnscope/{name}" for name in inside}}
    assert outside == {f"attnscope-{__version__}.dist-info"}
    assert not [name for name in files if re.search(r"(^|/)(tests?/|test_\w+\.py$|conftest\.py$)", name)]


def test_the_wheel_has_the_front_end_and_the_example(wheel: Path) -> None:
    files = files_of(wheel)
    for page in ("index.html", "explorer.js", "explorer.css", "loader.js", "survey.html", "survey.js", "survey.css"):
        assert files[f"attnscope/explore/static/{page}"], page
    assert files["attnscope/explore/example/trace.json"]
    assert "attnscope/py.typed" in files


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES


def test_the_wheel_requires_torch_numpy_and_rich_alone(wheel: Path) -> None:
    metadata = files_of(wheel)[f"attnscope-{__version__}.dist-info/METADATA"].decode()
    assert required(metadata) == CORE
    assert set(Parser().parsestr(metadata).get_all("Provides-Extra") or []) == {*EXTRAS, "all"}


def test_a_requirement_outside_of_extras_is_found() -> None:
    lines = "Requires-Dist: torch<2.14,>=2.13\nRequires-Dist: ray[data]>=2\nRequires-Dist: gguf; extra == 'models'\n"
    assert required(lines) == {"torch", "ray"}


def test_a_fresh_environment_has_no_extra_and_lacks_nothing(installed: Path) -> None:
    modules = sorted({module for modules in EXTRAS.values() for module in modules} - {"jinja2"})  # torch brings that
    code = f"from importlib.util import find_spec; print([m for m in {modules} if find_spec(m)])"
    assert run(installed / "python", "-c", code).stdout == "[]\n"
    run(sys.executable, "-m", "pip", "--python", installed / "python", "check")


def test_it_is_imported_from_there(installed: Path, tmp_path: Path) -> None:
    told = run(installed / "python", "-c", "import attnscope; print(attnscope.__file__)", cwd=tmp_path).stdout
    assert Path(told.strip()).is_relative_to(installed.parent)
    assert run(installed / "attnscope", "--version").stdout == f"attnscope {__version__}\n"


def test_the_doctor_tells_what_is_missing_and_how_to_get_it(installed: Path, tmp_path: Path) -> None:
    told = run(installed / "attnscope", "doctor", cwd=tmp_path)
    assert told.stderr == ""
    lines = dict(line.split("\t") for line in told.stdout.splitlines())
    for extra in EXTRAS:
        assert lines[f"[{extra}]"].endswith(f'missing; pip install "attnscope[{extra}]"')
    assert "attnscope fused by flash" in lines["causal, cpu"]
    assert "a token" in lines["by queries and keys"]


def test_the_readme_runs_there(installed: Path, tmp_path: Path) -> None:
    page = ROOT / "README.md"
    ran, *refused = run(installed / "python", "-c", RUN_BLOCKS, page, cwd=tmp_path).stdout.splitlines()
    assert int(ran) == page.read_text("utf-8").count("```python") - len(refused)
    assert int(ran) >= 2
    assert all('pip install "attnscope[' in line for line in refused)


def test_what_needs_an_extra_names_it(installed: Path, tmp_path: Path) -> None:
    assert NEED_AN_EXTRA.keys() == EXTRAS.keys()
    told = run(installed / "python", "-c", ASK, json.dumps(NEED_AN_EXTRA), cwd=tmp_path).stdout
    for extra, answer in json.loads(told).items():
        assert f'Install it with: pip install "attnscope[{extra}]"' in answer, extra
