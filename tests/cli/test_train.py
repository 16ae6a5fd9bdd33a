"""`attnscope train` as a person meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.cli.main import main


def test_it_trains_says_what_came_of_it_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["train", "reversal", "--steps", "30", "--evaluate-every", "10", "--out", str(tmp_path / "run")]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("30 steps, validation loss ")
    assert printed.out.endswith(f" nats per token, in {tmp_path / 'run'}\n")
    assert [line.split("  ")[0] for line in printed.err.splitlines() if "validation" in line] == [
        "step 0", "step 10", "step 20", "step 30",
    ]  # fmt: skip
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == printed.out
    assert "resuming after step 30" in again.err


def test_runs_go_to_a_folder_of_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "reversal", "--steps", "2", "--without-positions"]) == 0
    assert (tmp_path / "runs" / "reversal" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["char-gpt"], "train: char-gpt learns from text; give --data FILE"),
        (["reversal", "--data", "a.txt"], "train: reversal makes its own data; leave out --data"),
        (["reversal", "--base-model", "gpt2"], "train: reversal has no --base-model"),
        (["char-gpt", "--data", "a.txt", "--without-positions"], "train: char-gpt has no --without-positions"),
        (["reversal", "--steps", "0"], "Settings.steps must be at least 1, got 0"),
        (
            ["reversal", "--tensor-parallel-size", "2"],
            "context_parallel_size = 2 x 1, got 1; start them with torchrun",
        ),
        (["char-gpt", "--data", "nowhere.txt"], "read_documents: nowhere.txt was not found"),
    ],
)
def test_a_mistake_ends_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["train", "reversal", "--steps", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    assert main([*command, "--seed", "1"]) == 2
    assert "contains a run with seed = 0, not 1" in capsys.readouterr().err
    assert main([*command, "--log-every", "1"]) == 0  # this changes nothing that is learned


@pytest.mark.slow  # tests/train starts it so on several ranks
def test_torchrun_starts_it_as_a_module(tmp_path: Path):
    command = [sys.executable, "-m", "attnscope.train", "reversal", "--steps", "2", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("2 steps, validation loss ")
