"""`doctor --verify` prints a line per contract and device, and fails with the name of a contract that is broken."""

import io

import pytest
import torch
from rich.console import Console

from attnscope.attention import scores
from attnscope.cli import main as command
from attnscope.contracts import CONTRACTS, Check, Contract
from attnscope.contracts.tolerances import Deviation
from attnscope.doctor import verification, verify

QUICK = [
    contract for contract in CONTRACTS if contract.name in ("output of attend, float32", "output of attend, bfloat16")
]


def test_a_pipe_gets_device_contract_error_bound_and_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "CONTRACTS", QUICK)
    pipe = io.StringIO()
    assert verify(Console(file=pipe))
    rows = [line.split("\t") for line in pipe.getvalue().splitlines()]
    assert [row[:2] for row in rows] == [["cpu", contract.name] for contract in QUICK]
    for row in rows:
        assert int(row[2]) > 5
        assert 0 < float(row[3]) <= float(row[4])
        assert row[5] == "holds"


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "CONTRACTS", QUICK[:1])
    screen = io.StringIO()
    assert verify(Console(file=screen, force_terminal=True, color_system=None, width=100))
    assert "worst error" in screen.getvalue()
    assert "output of attend, float32" in screen.getvalue()


def test_a_broken_contract_is_named_with_its_device_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoiled(self: scores.Sinks, output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return output, lse

    monkeypatch.setattr(verification, "CONTRACTS", QUICK)
    monkeypatch.setattr(scores.Sinks, "apply", spoiled)
    assert command.main(["doctor", "--verify"]) == 2
    captured = capsys.readouterr()
    assert [line.split("\t")[5] for line in captured.out.splitlines() if "\toutput of" in line] == ["FAILS", "FAILS"]
    faults = [line for line in captured.out.splitlines() if line.startswith("output of attend, float32 on cpu: ")]
    assert faults
    assert all(", sinks, " in line or ", several, " in line for line in faults)
    assert "differs from the dense reference on this machine" in captured.err


def test_all_devices_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(verification, "find_devices", lambda: found)
    monkeypatch.setattr(
        verification,
        "CONTRACTS",
        [Contract("c", lambda device: [Check("one", lambda: [Deviation("x", float(device.index == 1), 0.5)])])],
    )
    pipe = io.StringIO()
    assert not verify(Console(file=pipe))
    lines = pipe.getvalue().splitlines()
    assert [line.split("\t")[0] for line in lines[:3]] == ["cpu", "cuda:0", "cuda:1"]
    assert lines[3:] == ["c on cuda:1: one: x: error 1, expected at most 0.5"]
