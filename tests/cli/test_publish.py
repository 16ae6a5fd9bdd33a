"""`attnscope publish`: a site from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnscope.cli.main import main
from tests.explorer.serving import small_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("publish") / "trace"
    small_trace().save(folder)
    return folder


def test_a_site_is_written_and_described(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    assert main(["publish", str(trace), "--heads", "L1H2 L0", "--name", "Verona", "--out", str(site)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{site}: 5 heads, ")
    assert "5 heads, at most " in printed.err
    manifest = json.loads((site / "manifest.json").read_text())
    assert manifest["session"]["traces"][0]["name"] == "Verona"
    assert 'pretty_name: "Verona"' in (site / "README.md").read_text()


def test_an_estimate_writes_nothing(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", str(trace), "--estimate"]) == 0
    assert capsys.readouterr().out.startswith("8 heads, at most ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "missing --out DIR"),
        (["--budget", "1kB", "--out", "x"], "not even one head fits"),
        (["--budget", "much", "--out", "x"], "expected a size such as 2GB"),
        (["--heads", "L7", "--out", "x"], "which has layers 0 to 1"),
    ],
)
def test_mistakes_are_one_line(
    trace: Path,
    words: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["publish", str(trace), *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
