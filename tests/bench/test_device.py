"""The benchmark of a device compares every operation with torch, and its report says what identifies the device."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest
import torch

from attnscope import bench
from attnscope.bench import device as device_bench
from attnscope.bench.device import compare_with_torch, contract_errors, default_report, operations, synchronized_clock
from attnscope.contracts import CONTRACTS, Check, Contract
from attnscope.contracts.tolerances import Deviation
from attnscope.recording import Trace
from scripts.device_table import read_report

CPU = torch.device("cpu")
ENTROPY = [contract for contract in CONTRACTS if contract.name == "entropy"]


def test_operations_compute_what_they_are_named_after() -> None:
    found = {name: call() for name, call in operations(CPU, 40, torch.float32).items()}
    torch.testing.assert_close(found["attend"], found["torch"])
    assert isinstance(found["lse"], torch.Tensor)
    trace = found["record"]
    assert isinstance(trace, Trace)
    matrix = next(iter(trace.values()))
    torch.testing.assert_close(matrix.lse, found["lse"])
    entropy, received = found["entropy and received"]  # type: ignore[misc]
    torch.testing.assert_close(matrix.entropy(), entropy)
    torch.testing.assert_close(found["summary"].received, received)  # type: ignore[attr-defined]


def test_the_table_has_a_ratio_for_every_operation_length_and_dtype() -> None:
    table = compare_with_torch(CPU, (16, 32), rounds=1)
    assert [row[:2] for row in table.rows] == [
        ("16", "float32"),
        ("32", "float32"),
        ("16", "bfloat16"),
        ("32", "bfloat16"),
    ]
    assert list(table.columns[2:]) == list(operations(CPU, 4, torch.float32))
    assert all(cell.endswith("x") for row in table.rows for cell in row[3:])


def test_the_clock_of_an_accelerator_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    assert synchronized_clock(CPU) is time.process_time
    assert waited == []
    gpu = torch.device("cuda", 0)
    assert synchronized_clock(gpu)() > 0
    assert waited == [gpu]


def test_a_contract_that_fails_is_in_the_table_and_named_below(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Contract("wrong", lambda _: [Check("causal", lambda: [Deviation("x", 1.0, 0.5)])])
    monkeypatch.setattr(device_bench, "CONTRACTS", [wrong])
    table = contract_errors(CPU)
    assert table.rows == [("cpu", "wrong", "1", "1", "0.5", "FAILS")]
    assert table.missed == ["wrong on cpu: causal: x: error 1, expected at most 0.5"]


def test_a_report_can_be_read_and_names_nothing_of_the_machine_but_its_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_bench, "CONTRACTS", ENTROPY)
    monkeypatch.setattr(device_bench, "find_devices", lambda: [CPU])
    tables = [compare_with_torch(CPU, (16,), rounds=1), contract_errors(CPU)]
    monkeypatch.setattr(device_bench, "tables", lambda size, step: iter(tables))
    path = tmp_path / "report.md"
    bench.run("device", report=str(path))
    assert f"report: {path}" in capsys.readouterr().err
    report = read_report(path)
    assert report.verdicts == ["holds"]
    assert report.facts["platform"] == "cpu"
    assert report.facts["torch"] == torch.__version__
    assert set(report.facts) == {
        *("date", "command", "device", "platform", "architecture", "triton"),
        *("attnscope", "torch", "python", "system", "cpu", "threads"),
    }
    assert platform.node() not in report.facts.values()


def test_a_report_is_named_after_its_device_and_goes_to_the_folder_of_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_bench, "device_name", lambda device: "NVIDIA H100 80GB (HBM3)")
    monkeypatch.chdir(tmp_path)
    assert default_report() == Path("nvidia_h100_80gb_hbm3.md")
    Path("benchmarks/results/devices").mkdir(parents=True)
    assert bench.default_report("device") == "benchmarks/results/devices/nvidia_h100_80gb_hbm3.md"
    assert bench.default_report("matrix").startswith("matrix_20")
