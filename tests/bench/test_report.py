"""Tables are printed for people and pipes, and written with what it takes to repeat them."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from attnscope import bench
from attnscope.bench import report
from attnscope.bench.report import Table
from attnscope.errors import AttnScopeError


def example() -> Table:
    table = Table(title="speed", comparison="ours against theirs", columns=("n", "ratio", "bound kept"))
    table.add("512", "1.01x", met=True)
    table.add("1,024", "9.00x", met=False)
    return table


def test_a_missed_bound_is_remembered() -> None:
    assert example().missed == ["speed: 1,024, 9.00x"]
    assert example().rows[1][-1] == "NO"


def test_a_pipe_gets_tabs_and_a_terminal_a_drawing() -> None:
    pipe, screen = io.StringIO(), io.StringIO()
    report.show(example(), Console(file=pipe))
    report.show(example(), Console(file=screen, force_terminal=True))
    assert pipe.getvalue().splitlines()[1] == "512\t1.01x\tyes"
    assert "┃" in screen.getvalue()


def test_a_report_says_versions_machine_command_and_table(tmp_path: Path) -> None:
    report.write(tmp_path / "speed.md", "speed", "attnscope bench speed", [example()])
    text = (tmp_path / "speed.md").read_text()
    assert f"- torch: {torch.__version__}" in text
    assert "- command: `attnscope bench speed`" in text
    assert "| 512 | 1.01x | yes |" in text


def test_a_report_names_the_model_that_was_measured(tmp_path: Path) -> None:
    report.write(tmp_path / "speed.md", "speed", "command", [example()], {"name": "mine", "hash": "sha256:12"})
    assert "\n- model: mine, fingerprint sha256:12\n" in (tmp_path / "speed.md").read_text()


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    with pytest.raises(AttnScopeError, match=r"unknown benchmark 'speed' \(expected attention, matrix"):
        bench.run("speed")


def test_a_benchmark_that_is_ended_leaves_the_tables_that_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tables(size: str, step: Callable[[str], None]) -> Iterator[Table]:
        yield example()
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "import_module", lambda name: SimpleNamespace(tables=tables))
    with pytest.raises(KeyboardInterrupt):
        bench.run("matrix", report=str(tmp_path / "report.md"))
    assert f"## {example().title}" in (tmp_path / "report.md").read_text()
