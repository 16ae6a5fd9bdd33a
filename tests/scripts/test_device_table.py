"""The table of devices claims what the reports say, and nothing for devices without one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnscope.bench import report
from attnscope.bench.report import Table
from attnscope.contracts import COLUMNS
from scripts import device_table
from scripts.device_table import BEGIN, END, PAGE, compiled_architectures, read_report, read_reports, table

CONDITIONS = {
    "device": "NVIDIA H100 80GB HBM3",
    "platform": "cuda",
    "architecture": "sm_90",
    "runtime": "CUDA 12.8",
    "attnscope": "0.1",
    "torch": "2.15.0",
    "python": "3.11.9",
    "system": "Linux x86_64",
}
MACHINE = re.compile(r"/(?:home|Users|root|work|tmp)/|\blocalhost\b|\w@\w")
"""What would name a machine or a person."""


def write_report(folder: Path, conditions: dict[str, str] = CONDITIONS, verdict: str = "holds") -> Path:
    ratios = Table(title="operations", comparison="...", columns=("n", "ratio"))
    ratios.add("512", "1.01x")
    contracts = Table(title="contracts", comparison="...", columns=COLUMNS)
    contracts.add("cuda:0", "entropy", "20", "1e-06", "2e-06", "holds")
    contracts.add("cuda:0", "summary", "20", "1e-06", "2e-06", verdict)
    path = folder / "h100.md"
    report.write(path, "device", "attnscope bench device", [ratios, contracts], conditions=conditions)
    return path


def test_the_page_has_the_table_of_the_reports() -> None:
    inside = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert inside.strip().splitlines() == table(read_reports(), compiled_architectures()), "run scripts/device_table.py"


def test_reports_name_no_machine() -> None:
    reports = list(device_table.REPORTS.glob("*.md"))
    assert reports
    assert [path.name for path in reports if MACHINE.search(path.read_text(encoding="utf-8"))] == []
    assert MACHINE.search("- folder: /home/somebody/attnscope")


def test_without_a_report_no_device_counts_as_run() -> None:
    lines = table([], {"sm_90"})
    assert not any("**run**" in line for line in lines)
    assert "| NVIDIA H100, H200 | sm_90 | compiled and simulated, never run |" in lines
    assert "| Apple GPUs | mps | simulated, never run |" in lines
    assert "| Intel GPUs | xpu | never run |" in lines
    assert all(line.endswith("never run |") for line in lines[2:])


def test_a_report_replaces_the_row_of_its_architecture(tmp_path: Path) -> None:
    lines = table([read_report(write_report(tmp_path))], set())
    assert lines[2].startswith(
        "| NVIDIA H100 80GB HBM3 | sm_90 | **run**: 2 of 2 contracts hold, torch 2.15.0, CUDA 12.8"
    )
    assert "[report](../benchmarks/results/devices/h100.md)" in lines[2]
    assert sum("sm_90" in line for line in lines) == 1
    assert any("| NVIDIA A100 | sm_80 |" in line for line in lines)


def test_a_contract_that_fails_is_not_counted_as_holding(tmp_path: Path) -> None:
    assert "1 of 2 contracts hold" in table([read_report(write_report(tmp_path, verdict="FAILS"))], set())[2]


@pytest.mark.parametrize("missing", ["device", "architecture", "torch"])
def test_a_report_that_is_not_complete_is_refused(missing: str, tmp_path: Path) -> None:
    path = write_report(tmp_path, {name: value for name, value in CONDITIONS.items() if name != missing})
    with pytest.raises(ValueError, match=f"h100.md: {missing} missing; write the report again"):
        read_report(path)


def test_a_report_without_contracts_is_refused(tmp_path: Path) -> None:
    path = write_report(tmp_path)
    path.write_text(path.read_text().partition("## contracts")[0])
    with pytest.raises(ValueError, match="contracts missing"):
        read_report(path)


def test_an_architecture_counts_as_compiled_by_the_newest_report_of_kernels(tmp_path: Path) -> None:
    assert compiled_architectures(tmp_path) == set()
    (tmp_path / "kernels_2026-01-01.md").write_text("| sm_80 | rows |\n")
    (tmp_path / "kernels_2026-02-01.md").write_text("| sm_90 | rows |\n| gfx942 | rows |\n")
    assert compiled_architectures(tmp_path) == {"sm_90", "gfx942"}
