"""The wheel holds what it should, and what an installation of it promises is kept in an environment of its own.

Two environments are made for all of these tests, also where several processes run them: one without extras, and one by
the install line of the README, with the model that `attnscope download` gets. pip installs torch into them as a user
would: from wherever pip is told to look, which may be its cache.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from filelock import FileLock

from attnscope.explorer.handlers.traces import ASSETS
from attnscope.extras import EXTRAS
from attnscope.version import __version__

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "attnscope"
MAX_BYTES = 2_000_000
CORE = {"torch", "numpy", "rich", "click", "fsspec", "filelock"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}

FENCE = re.compile(r"^```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SERVES = re.compile(r"attnscope (look|explore)\b")
WAIT_SECONDS = 300

NEED_AN_EXTRA = {
    "models": "from attnscope.models import load; load('somebody/something')",
    "record": "from attnscope.recording import load; load('.', using='transformers')",
    "figures": "from attnscope.figures import heatmap; heatmap(matrix)",
    "tables": "from attnscope.heads import score_heads; score_heads(trace, progress=False).to_pandas()",
    "train": "from attnscope.train.data.documents import read_documents; list(read_documents(['a.parquet']))",
    "survey": "main(['survey', 'show', '.'])",
    "ray": "from attnscope.extras import import_extra; import_extra('ray')",
    "s3": "from attnscope.extras import require; require('s3')",
    "explore": "main(['explore', '--no-browser'])",
    "triton": "sys.modules['triton'] = None; import attnscope.attention.triton.launch",
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


def environment_of_a_user(cache: Path | None = None) -> dict[str, str]:
    """The variables of a user who is offline, has set nothing about Python, and may have a cache folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    hub = {"HF_HUB_CACHE": str(ROOT / ".cache" / "hub")}  # what the pages call by its name on the hub
    return kept | OFFLINE | hub | ({} if cache is None else {"XDG_CACHE_HOME": str(cache)})


def run(
    *command: str | Path, check: bool = True, cwd: Path | None = None, cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as such a user."""
    environment = environment_of_a_user(cache)
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
    for page in (*ASSETS, "loader.js"):
        assert files[f"attnscope/explorer/static/{page}"], page
    assert files["attnscope/explorer/example/trace.json"]
    assert "attnscope/py.typed" in files


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_BYTES


def test_the_wheel_requires_its_core_alone(wheel: Path) -> None:
    metadata = files_of(wheel)[f"attnscope-{__version__}.dist-info/METADATA"].decode()
    assert required(metadata) == CORE
    assert set(Parser().parsestr(metadata).get_all("Provides-Extra") or []) == {*EXTRAS, "all"}


def test_a_requirement_outside_of_extras_is_found() -> None:
    lines = "Requires-Dist: torch<9,>=2\nRequires-Dist: ray[data]>=2\nRequires-Dist: gguf; extra == 'models'\n"
    assert required(lines) == {"torch", "ray"}


@pytest.mark.slow
def test_a_fresh_environment_has_no_extra_and_lacks_nothing(installed: Path) -> None:
    brought = {"jinja2", "fsspec", "triton"}  # by torch, triton only by torch for CUDA
    modules = sorted({module for modules in EXTRAS.values() for module in modules} - brought)
    code = f"from importlib.util import find_spec; print([m for m in {modules} if find_spec(m)])"
    assert run(installed / "python", "-c", code).stdout == "[]\n"
    run(sys.executable, "-m", "pip", "--python", installed / "python", "check")


@pytest.mark.slow
def test_it_is_imported_from_there(installed: Path, tmp_path: Path) -> None:
    result = run(installed / "python", "-c", "import attnscope; print(attnscope.__file__)", cwd=tmp_path).stdout
    assert Path(result.strip()).is_relative_to(installed.parent)
    assert run(installed / "attnscope", "--version").stdout == f"attnscope {__version__}\n"


@pytest.mark.slow
def test_the_doctor_tells_what_is_missing_and_how_to_get_it(installed: Path, tmp_path: Path) -> None:
    result = run(installed / "attnscope", "doctor", cwd=tmp_path)
    assert result.stderr == ""
    lines = dict(line.split("\t") for line in result.stdout.splitlines())
    for extra in EXTRAS.keys() - {"triton"}:
        assert lines[f"[{extra}]"].endswith(f'missing; pip install "attnscope[{extra}]"')
    assert "attnscope fused by flash" in lines["causal, cpu"]
    assert "per token" in lines["as queries and keys"]


@pytest.fixture(scope="module")
def with_extras(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment made by the install line of the README, with pip in it, and a cache with the downloaded model."""

    def install(folder: Path) -> None:
        (line,) = re.findall(
            r'^pip install "attnscope(\[.*\])"$', (ROOT / "README.md").read_text("utf-8"), re.MULTILINE
        )
        run(sys.executable, "-m", "venv", folder)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile")
        run(*pip, "--constraint", ROOT / "constraints.txt", f"{wheel}{line}")
        run(folder / "bin" / "attnscope", "download", "smollm2-135m", cache=folder / "cache")

    return made_once("with_extras", install, tmp_path_factory)


def start_and_stop(command: list[str], environment: dict[str, str], cwd: Path) -> None:
    """Start a command that serves a page until Ctrl-C; fetch the page, and stop it."""
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            (address,) = re.findall(r"http://\S+", next(line for line in process.stdout if "http://" in line))
            with build_opener(HTTPCookieProcessor()).open(address, timeout=WAIT_SECONDS) as page:
                assert b"<html" in page.read()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) in (0, 130)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_a_page_runs_there_as_printed_and_offline(with_extras: Path, tmp_path: Path, page: str) -> None:
    (tmp_path / "report.txt").write_text("The key was lost. Anna looked for the key.")
    cache, ran = with_extras / "cache", {"bash": 0, "python": 0}
    for language, code in FENCE.findall((ROOT / page).read_text("utf-8")):
        ran[language] += 1
        if language == "python":
            run(with_extras / "bin" / "python", "-c", code, cwd=tmp_path, cache=cache)
            continue
        for line in code.splitlines():
            program, *arguments = shlex.split(line)
            if program == "pip":  # what made this environment
                continue
            assert program == "attnscope"
            command = [str(with_extras / "bin" / program), *arguments]
            if SERVES.match(line):
                start_and_stop([*command, "--no-browser"], environment_of_a_user(cache), tmp_path)
            else:
                run(*command, cwd=tmp_path, cache=cache)
    assert all(ran.values())


@pytest.mark.slow
def test_what_needs_an_extra_names_it(installed: Path, tmp_path: Path) -> None:
    assert NEED_AN_EXTRA.keys() == EXTRAS.keys()
    result = run(installed / "python", "-c", ASK, json.dumps(NEED_AN_EXTRA), cwd=tmp_path).stdout
    for extra, answer in json.loads(result).items():
        assert f'Install it with: pip install "attnscope[{extra}]"' in answer, extra
