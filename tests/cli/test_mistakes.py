"""A user's mistake ends in one sentence that says what to do: all in this process, and some in one of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from attnscope.cli.main import main
from attnscope.recording import Trace
from tests.cli.parsing import parsed
from tests.cli.running import Result, assert_mistake, run_command

NOT_TEXT = b"\xff\xfe\x00\x80" * 50


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what people point at by mistake."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "picture.png").write_bytes(NOT_TEXT)
    (folder / "words.txt").write_text("so it is, and so it was")
    (folder / "model.gguf").write_bytes(b"a text that is called a model, and is none")
    for name in ("folder", "damaged", "unfinished-model"):
        (folder / name).mkdir()
    (folder / "damaged" / "trace.json").write_text('{"format": ')
    (folder / "unfinished-model" / "config.json").write_text('{"model_type": "llama"}')
    Trace.from_attentions([torch.eye(4)[None, None]], tokens=["so", "it", "is", "so"]).save(folder / "trace")
    return folder


def run_process(*arguments: str, desk: Path) -> Result:
    """Run the command as a process in a folder, with a picture on standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "attnscope.cli.main", *arguments],
        cwd=desk,
        input=NOT_TEXT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


MISTAKES = {
    "the name of heads with a typo": (["hedas"], "attnscope: unknown command 'hedas' (did you mean 'heads'?)"),
    "a command with a typo": (["suvrey"], "unknown command 'suvrey' (did you mean 'survey'?); see attnscope --help"),
    "an option with a typo": (["--verson"], "attnscope: unknown option --verson (did you mean --version?)"),
    "a command of survey with a typo": (
        ["survey", "shw", "x"],
        "survey: unknown command 'shw' (did you mean 'show'?); see attnscope survey --help",
    ),
    "a survey without run": (
        ["survey", ".", "--ou", "x"],
        "survey: unknown command '.' (expected run, show, diff or export)",
    ),
    "an option that is cut short": (
        ["survey", "run", ".", "words.txt", "--ou", "x"],
        "survey run: unknown option --ou (did you mean --out?); see attnscope survey run --help",
    ),
    "an option that is missing": (["survey", "run", ".", "words.txt"], "survey run: missing --out DIR; see"),
    "an argument that is missing": (["look"], "look: missing MODEL; see attnscope look --help"),
    "an argument too many": (["doctor", "now"], "doctor: got unexpected extra argument (now)"),
    "a lab with a typo": (
        ["lab", "run", "worked_example"],
        "unknown lab 'worked_example' (did you mean 'worked_examples'?)",
    ),
    "an exercise with a typo": (["lab", "exercise", "casual_mask"], "(did you mean 'causal_mask'?)"),
    "a label with a typo": (
        ["heads", "trace", "--find", "inductoin"],
        "heads: unknown label 'inductoin' (did you mean 'induction'?)",
    ),
    "a benchmark with a typo": (["bench", "atention"], "unknown benchmark 'atention' (did you mean 'attention'?)"),
    "a recipe with a typo": (["train", "reversel"], "unknown recipe 'reversel' (did you mean 'reversal'?)"),
    "a size that is none": (
        ["bench", "attention", "--size", "huge"],
        "bench: unknown size 'huge' (expected small or full); see attnscope bench --help",
    ),
    "a word for a number": (
        ["heads", "trace", "--top", "many"],
        "heads: --top: 'many' is not a valid integer; see attnscope heads --help",
    ),
    "a shell that is not known": (["completion", "tcsh"], "unknown shell 'tcsh' (expected bash, zsh or fish)"),
    "a folder for a text": (["look", "trace2", "folder"], "folder is a folder; expected a text"),
    "a picture for a text": (["look", "m", "picture.png"], "picture.png cannot be read as an image"),
    "a picture for a prompt": (["generate", "m", "-"], "standard input is not UTF-8 text"),
    "a text for a model": (["generate", "words.txt", "x"], "give the folder that holds config.json and"),
    "a model that is none": (["generate", "model.gguf", "x"], "model.gguf is not a GGUF file"),
    "a name on the hub without a network": (["heads", "nobody/nothing"], "or give a folder or a .gguf file"),
    "a model without weights": (["generate", "unfinished-model", "x"], "unfinished-model"),
    "a damaged trace": (["explore", "damaged", "--no-browser"], "damaged/trace.json is not valid JSON"),
    "a folder without a trace": (
        ["explore", "folder", "--no-browser"],
        "attnscope: folder is not a saved trace, survey or watched run (no trace.json, manifest.json or steps.jsonl)",
    ),
    "a head that is not there": (["explore", "trace", "--save", "x.html", "--head", "L9H0"], "L9H0"),
    "a page in a place that is none": (
        ["explore", "trace", "--save", "no/page.html"],
        "no/page.html",
    ),
    "a table on a folder": (
        ["heads", "trace", "--csv", "folder"],
        "folder is a folder; expected a file, such as folder/",
    ),
    "a table in a place that is none": (["heads", "trace", "--parquet", "no/table"], "does not exist"),
    "a table that the system refuses": (["heads", "trace", "--csv", "/proc/table.csv"], "cannot be written"),
    "pictures that the system refuses": (["heads", "trace", "--pictures", "/proc/pictures"], "cannot be written"),
    "a report in a place that is none": (["bench", "attention", "--report", "no/report.md"], "does not exist"),
    "a run over a file": (["train", "reversal", "--steps", "1", "--out", "words.txt"], "words.txt"),
    "a picture to learn from": (["train", "char-gpt", "--data", "picture.png"], "picture.png is not valid UTF-8"),
    "a survey that is none": (["survey", "show", "folder"], "folder"),
}


IN_A_PROCESS = ("a command with a typo", "a model that is none")
"""Mistakes that stand for all others where a new process is checked: one before torch is imported, and one after."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_a_sentence_and_exit_code_two(
    mistake: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    arguments, message = MISTAKES[mistake]
    assert_mistake(run_command(*arguments, stdin=NOT_TEXT, folder=desk, columns=200), message)


@pytest.mark.parametrize(
    "mistake", [name if name in IN_A_PROCESS else pytest.param(name, marks=pytest.mark.slow) for name in MISTAKES]
)
def test_a_mistake_ends_a_process_alike(mistake: str, desk: Path) -> None:
    arguments, message = MISTAKES[mistake]
    assert_mistake(run_process(*arguments, desk=desk), message)


@pytest.mark.parametrize("is_offline", [True, False])
def test_a_model_that_the_hub_does_not_have_is_explained_without_names_of_exceptions(
    is_offline: bool, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    found = run_command("look", "nonexistent/modle", folder=desk)
    assert_mistake(found, "'nonexistent/modle' is not a folder, is not in the local cache of the hub")
    assert "Error" not in found.errors


@pytest.mark.parametrize("name", ["heads", "look"])
@pytest.mark.parametrize("at", range(3))
def test_options_may_stand_anywhere(name: str, at: int) -> None:
    words = ["MODEL", "words.txt"]
    given = parsed([name, *words[:at], "--tokens", "100", *words[at:]])
    assert (given.params["model"], given.params["text"], given.params["tokens"]) == ("MODEL", "words.txt", 100)


def test_options_before_a_text_are_read_with_it(desk: Path) -> None:
    code, _, errors = run_command("heads", "trace", "--top", "3", "words.txt", folder=desk)
    assert code == 2
    assert "trace is a saved trace with its own text" in errors


def test_a_port_that_is_taken_is_named(desk: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = run_command("explore", "--no-browser", "--port", str(port), folder=desk)
    assert_mistake(found, f"port {port}: Address already in use")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_disk_without_room_is_one_line(desk: Path) -> None:
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "attnscope.cli.main", "completion", "bash"]
        done = subprocess.run(program, cwd=desk, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "attnscope: standard output: No space left on device; give another path, or free some space\n"
    assert done.returncode == 2


def test_a_place_without_permission_is_refused_before_work_begins(desk: Path) -> None:
    program = (
        "import os, sys; from attnscope.cli.output_paths import check_output_file\n"
        "if os.geteuid() == 0: os.setuid(65534)  # root may write everywhere, nobody may not\n"
        "try: check_output_file('/table.csv', command_name='heads')\n"
        "except ValueError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=desk, capture_output=True, text=True, check=True)
    assert result.stdout == "heads: /table.csv cannot be written: permission denied; give another path\n"


@pytest.mark.parametrize(
    ("arguments", "absent", "extra"),
    [
        (["explore", "trace", "--no-browser"], "safetensors", "explore"),
        (["explore", "--no-browser"], "starlette", "explore"),
        (["look", "a-model"], "uvicorn", "explore"),
        (["heads", "nobody/nothing"], "huggingface_hub", "models"),
        (["heads", "trace", "--parquet", "table"], "pyarrow", "tables"),
        (["heads", "trace", "--pictures", "pictures"], "matplotlib", "figures"),
        (["survey", "show", "folder"], "pyarrow", "survey"),
        (["survey", "run", "m", "words.txt", "--out", "s"], "ddsketch", "survey"),
        (["train", "char-gpt", "--data", "words.parquet"], "pyarrow", "train"),
    ],
)
def test_a_missing_extra_is_named_by_what_needs_it(
    arguments: list[str],
    absent: str,
    extra: str,
    desk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setitem(sys.modules, absent, None)  # as if it was not installed
    (desk / "words.parquet").write_bytes(b"PAR1")
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f'attnscope: {absent} is needed here and is not installed. Install it with: pip install "attnscope[{extra}]"\n'
    )
