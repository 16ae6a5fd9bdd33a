"""`attnscope survey` as a person meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.cli.main import main
from tests.survey.survey_process import OPTIONS, write_model, write_text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The first words of a command: a model and a text."""
    folder = tmp_path_factory.mktemp("corpus")
    return [str(write_model(folder / "model")), str(write_text(folder / "text.txt", 6000))]


def test_it_says_what_there_is_to_read_what_came_of_it_and_that_it_is_finished(
    corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["survey", "run", *corpus, *OPTIONS, "--out", str(tmp_path / "out")]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.err == "3 shards to read, about 1,500 tokens; the corpus has 6.0 kB\n"
    assert printed.out.endswith(f" passages of 3 documents, 0 problems, in {tmp_path / 'out'}\n")
    assert len(printed.out.splitlines()) == 1
    assert "\x1b" not in printed.out + printed.err
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == printed.out
    assert again.err == f"{tmp_path / 'out'} already holds this survey, and it is finished\n"


def test_it_resumes_and_says_so(corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["survey", "run", *corpus, *OPTIONS, "--out", str(tmp_path / "out")]
    assert main(command) == 0
    first = capsys.readouterr().out
    for name in ("manifest.json", "partials/00000001.partial"):
        (tmp_path / "out" / name).unlink()
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("resuming after 2 of 3 shards: 1 shard to read, about 500 tokens")
    assert printed.out == first


@pytest.mark.slow
def test_what_came_of_it_can_be_piped(corpus: list[str], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "attnscope.cli.main",
        "survey",
        "run",
        *corpus,
        *OPTIONS,
        "--out",
        str(tmp_path / "out"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout.count("\n") == 1
    assert ran.stdout.startswith("6,0")
    assert "\x1b" not in ran.stdout + ran.stderr


def test_show_and_diff_are_commands_of_their_own(
    corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["survey", "run", *corpus, *OPTIONS, "--out", out]) == 0
    capsys.readouterr()
    assert main(["survey", "show", out]) == 0
    assert "8 heads: " in capsys.readouterr().out
    assert main(["survey", "diff", out, out]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "nowhere.txt"], "survey: nowhere.txt not found"),
        (["nowhere", "TEXT"], "'nowhere' is neither a folder, nor a .gguf file, nor a name on the hub"),
        (["MODEL", "TEXT", "--max-length", "1"], "survey: max_length must be at least 2, got 1"),
        (["MODEL", "TEXT", "--batch-tokens", "0"], "survey: batch_tokens must be at least 1, got 0"),
        (["MODEL", "TEXT", "--shard-bytes", "0"], "survey: shard_bytes must be at least 1, got 0"),
        (["MODEL", "TEXT", "--workers", "0"], "survey: workers must be at least 1, got 0"),
        (["MODEL", "TEXT", "--threads", "0"], "survey: threads must be at least 1, got 0"),
        (["MODEL", "TEXT", "--gpus", "8", "--workers", "2"], "survey: gpus must be at most 1 per worker, got 8"),
        (["MODEL", "TEXT", "--max-skipped", "5"], "survey: max_skipped must be from 0 to 1, got 5"),
        (["MODEL", "TEXT", "--cpus", "2"], "survey: --cpus and --gpus need Ray; give --workers or --ray"),
        (["MODEL", "TEXT", "--max-length", "64", "--whole"], "survey: --max-length cannot be combined with --whole"),
        (["MODEL", "TEXT", "--device", "moon"], "survey: device 'moon' is not available"),
        (["MODEL", "TEXT", "--separator", "a\nb"], "survey: separator must be one line"),
        (["MODEL", "TEXT", "--out", "sftp://a/b"], "got sftp://a/b"),
        (["MODEL", "TEXT", "--out", "TEXT"], "cannot write to "),
        (["MODEL", "empty.txt"], "survey: nothing to read in 1 files; the first, "),
    ],
)
def test_a_mistake_ends_in_one_line(
    arguments: list[str],
    message: str,
    corpus: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    words = {"MODEL": corpus[0], "TEXT": corpus[1]}
    assert main(["survey", "run", "--out", "out", *(words.get(word, word) for word in arguments)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1
    assert not Path("out").exists()


def test_another_survey_in_the_same_folder_is_refused(
    corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["survey", "run", *corpus, *OPTIONS, "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert main([*command, "--max-length", "32"]) == 2
    assert "has a survey with max_length = 64, got 32" in capsys.readouterr().err
