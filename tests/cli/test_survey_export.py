"""`attnscope survey export` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnscope.cli.main import main
from attnscope.survey import run_survey
from tests.survey.survey_process import SMALL, write_model, write_text


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    run_survey(write_model(folder / "model"), write_text(folder / "text.txt", 600), folder / "survey", **SMALL)
    return folder / "survey"


def test_a_tree_is_written_and_described(surveyed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "exports"
    words = ["survey", "export", str(surveyed), "--passages", "3", "--out", str(out)]
    assert main([*words, "--model-id", "small-1", "--dataset", "a/b"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("survey export: 8 heads, 3 passages, ")
    tree = out / "small-1" / "headvis" / "a-b"
    assert printed.out.startswith(f"{tree}: 12 files, ")
    assert json.loads((tree / "config.json").read_text())["np_model_id"] == "small-1"


def test_an_estimate_writes_nothing(surveyed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["survey", "export", str(surveyed), "--estimate"]) == 0
    assert capsys.readouterr().out.startswith("8 heads, ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing --out DIR"),
        (["--out", "x", "--format", "headviz"], "unknown format 'headviz' (did you mean 'headvis'?)"),
        (["--out", "x", "--passages", "0"], "1 to 256 passages, got 0"),
        (["--out", "x", "--model-id", "..."], "expected a name with a letter or a digit, got '...'"),
    ],
)
def test_mistakes_are_one_line(
    surveyed: Path,
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["survey", "export", str(surveyed), *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert not list(tmp_path.iterdir())
