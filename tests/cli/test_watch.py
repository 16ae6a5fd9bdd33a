"""`attnscope watch`, as a user runs it: in a pipe, in a terminal, while a run is written, and on damaged folders."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from attnscope.cli.main import main
from attnscope.cli.watch import draw_trend, follow
from attnscope.telemetry import Watch
from attnscope.telemetry.run_log import ALERTS, STEPS, RunLog
from attnscope.telemetry.run_reader import RunReader
from attnscope.telemetry.run_summary import summarize_run
from tests.cli.running import assert_mistake, run_command
from tests.telemetry.runs import LAYERS, make_alert, make_statistics, write_run, write_steps

GROWING = np.outer(np.linspace(1, 2, 30), [1.0, 2.0, 3.0, 60.0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("watch") / "first", GROWING, alerts=[make_alert(200), make_alert(210, 0)])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def table_in(output: str, first: str) -> list[dict[str, str]]:
    """The table whose first column has this name."""
    lines = output.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"{first}\t"))
    stop = next((at for at in range(start, len(lines)) if "\t" not in lines[at]), None)
    return list(csv.DictReader(lines[start:stop], delimiter="\t"))


def test_a_pipe_gets_the_worst_heads_and_the_alerts_once(run: Path) -> None:
    result = run_command("watch", run)
    assert (result.code, result.errors) == (0, "")
    assert f"{run}: 4 heads in 2 layers, 30 measured steps, the last is step 300" in result.output
    heads = table_in(result.output, "head")
    assert [row["head"] for row in heads] == ["1.1", "1.0", "0.1", "0.0"]
    assert (heads[0]["logit"], heads[0]["query"], heads[0]["peak"], heads[0]["at_step"]) == ("120", "1", "120", "300")
    assert "no collapsed heads" in result.output
    assert "2 alerts (2 large logit), the last ones first:" in result.output
    alerts = table_in(result.output, "step")
    assert [(row["step"], row["head"], row["query"], row["key"]) for row in alerts] == [
        ("210", "1.0", "11", "3"),
        ("200", "1.1", "11", "3"),
    ]
    assert alerts[0]["reason"] == "max logit 123.4 is above 100"
    assert "\x1b" not in result.output


def test_json_has_every_head_and_alert(run: Path) -> None:
    found = json.loads(run_command("watch", run, "--json").output)
    assert found["steps"] == list(range(10, 301, 10))
    assert [(head["layer"], head["head"], head["max_logit"]) for head in found["heads"]][:2] == [
        (LAYERS[1], 1, 120.0),
        (LAYERS[1], 0, 6.0),
    ]
    assert [alert["step"] for alert in found["alerts"]] == [200, 210]
    assert len(json.loads(run_command("watch", run, "--json", "--top", "1").output)["heads"]) == 1


@pytest.mark.usefixtures("terminal")
def test_a_terminal_of_eighty_columns_has_room(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_run(tmp_path, GROWING[:12] * 0.5)
    for arguments in ([run], [run, other]):
        assert main(["watch", "--once", *map(str, arguments)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(len(console_text(line)) for line in lines) <= 80
        assert any("█" in line for line in lines)


def console_text(line: str) -> str:
    from rich.text import Text

    return Text.from_ansi(line).plain


def test_a_terminal_follows_a_run_until_it_is_stopped(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=40, highlight=False)
    steps = iter([1, 2, 3])

    def train(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        write_steps(log, GROWING[step - 1 : step], [step], [make_alert(2)])

    reader = RunReader(tmp_path)
    follow([reader], 10, console, wait=train)
    log.close()
    output = " ".join(console_text(screen.getvalue()).split())
    assert "no step is measured yet" in output
    assert [f"the last is step {step}" in output for step in (1, 2, 3)] == [True] * 3
    assert "no alerts" in output.partition("the last is step 2")[0]
    assert "1 alert" in output.partition("the last is step 3")[2]


def test_two_runs_are_compared_at_the_last_step_of_both(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", GROWING[:20] * [1, 1, 1, 0.5])
    result = run_command("watch", run, other)
    assert "differ most at step 200, the last that both measured" in result.output
    first = table_in(result.output, "head")[0]
    assert (first["head"], first["difference"], first["alert"], first["other's"]) == ("1.1", "-49.7", "200", "-")
    assert f"{run}: 2 alerts, the first at step 200, head 1.1: max logit 123.4 is above 100" in result.output
    assert f"{other}: no alerts" in result.output
    found = json.loads(run_command("watch", run, other, "--json", "--top", "1").output)
    assert found["step"] == 200
    assert found["heads"][0]["difference"] == pytest.approx(-49.66, abs=0.01)


def test_heads_that_are_not_finite_or_collapsed_are_named(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for step, logit in enumerate([4.0, math.nan]):
        broken = make_statistics([logit, 2.0], max_key_norm=[logit, 1.0], collapsed=[0.0, 0.75])
        log.write(step, {LAYERS[0]: broken, LAYERS[1]: make_statistics([1.0, 1.0])}, [])
    log.close()
    result = run_command("watch", tmp_path)
    (first, *_) = table_in(result.output, "head")
    assert (first["head"], first["logit"], first["trend"]) == ("0.0", "not finite", "█!")
    assert "1 collapsed head (at least 50% of the queries have an entropy below 0.1 nats): 0.1 (75%)" in result.output


def test_a_trend_begins_at_zero_and_keeps_peaks(run: Path, tmp_path: Path) -> None:
    reader = RunReader(run)
    reader.update()
    assert draw_trend(summarize_run(reader)[0], 4) == "▅▆▇█"
    peaks = RunReader(write_run(tmp_path, np.array([[-1.0], [8.0], *[[1.0]] * 98]) * np.ones(4)))
    peaks.update()
    assert draw_trend(summarize_run(peaks)[0], 10) == "█" + "▁" * 9


def test_names_from_a_file_do_not_control_the_terminal(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    alert = make_alert(1, layer="\x1b[31mred", reason="a\nb\x1b[0m")
    log.write(1, {"\x1b[31mred": make_statistics([1.0])}, [alert])
    log.close()
    for arguments in ([], [tmp_path]):
        result = run_command("watch", tmp_path, *arguments)
        assert result.code == 0
        assert "\x1b" not in result.output


def test_a_run_without_a_step_says_so(tmp_path: Path) -> None:
    RunLog(tmp_path).close()
    assert run_command("watch", tmp_path).output == f"{tmp_path}: no step is measured yet\n"
    assert json.loads(run_command("watch", tmp_path, "--json").output)["heads"] == []
    assert json.loads(run_command("watch", tmp_path, tmp_path, "--json").output)["step"] is None


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, GROWING[:3])
    with (tmp_path / STEPS).open("ab") as file:
        file.write(b'{"step": 40, "la')
    assert "the last is step 30" in run_command("watch", tmp_path).output


def test_mistakes_end_in_a_sentence(run: Path, tmp_path: Path) -> None:
    assert_mistake(run_command("watch", tmp_path), "it has no steps.jsonl; write one with watch(model, folder=...)")
    assert_mistake(run_command("watch", tmp_path / "no"), "it is not a folder")
    assert_mistake(run_command("watch", run, "--top", "0"), "--top must be at least 1, got 0")
    write_run(tmp_path, GROWING[:3], every=7)
    assert_mistake(run_command("watch", run, tmp_path), "no measured step in common")
    (tmp_path / ALERTS).write_bytes(b"{}\n")
    assert_mistake(run_command("watch", tmp_path), f"{ALERTS}, line 1: damaged")


class Attention(nn.Module):
    """Causal self-attention of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


def test_a_process_prints_a_real_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(Attention(), Attention()), torch.randn(2, 12, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, every=2, folder=tmp_path) as watch:
        for _ in range(6):
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
    command = [sys.executable, "-m", "attnscope.cli.main", "watch", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "4 heads in 2 layers, 4 measured steps, the last is step 6" in done.stdout
    assert len(table_in(done.stdout, "head")) == 4
