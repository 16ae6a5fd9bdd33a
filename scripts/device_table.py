"""Write the table of devices in docs/support.md from the reports in benchmarks/results.

Usage: .venv/bin/python scripts/device_table.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "support.md", ROOT / "benchmarks" / "results"
REPORTS = RESULTS / "devices"
BEGIN, END = "<!-- made by scripts/device_table.py -->", "<!-- end of scripts/device_table.py -->"

FACT = re.compile(r"^- (?P<name>[\w ]+): (?P<value>.+)$", re.MULTILINE)
REQUIRED = ("date", "device", "platform", "architecture", "attnscope", "torch", "python", "system")
CONTRACT_COLUMNS = 6

DEVICES = {
    "sm_80": "NVIDIA A100",
    "sm_90": "NVIDIA H100, H200",
    "sm_100": "NVIDIA B200",
    "sm_120": "NVIDIA RTX 5090",
    "gfx942": "AMD Instinct MI300X",
    "gfx950": "AMD Instinct MI355X",
    "other": "other NVIDIA and AMD GPUs",
    "mps": "Apple GPUs",
    "xpu": "Intel GPUs",
}
"""Examples of devices by architecture."""
SIMULATED = {"sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "other", "mps"}
"""Architectures whose device tests simulate."""


class Report(NamedTuple):
    """A report of `attnscope bench device --report`."""

    file: str
    facts: dict[str, str]
    verdicts: list[str]


def read_report(path: Path) -> Report:
    """Read the facts and verdicts of a report.

    Raises:
        ValueError: The file is not a complete report.
    """
    text = path.read_text(encoding="utf-8")
    head, _, contracts = text.partition("\n## contracts\n")
    facts = {found["name"]: found["value"] for found in FACT.finditer(head)}
    rows = [line.strip("|").split("|") for line in contracts.splitlines() if line.startswith("| ")]
    verdicts = [row[-1].strip() for row in rows[1:] if len(row) == CONTRACT_COLUMNS and "---" not in row[0]]
    missing = [name for name in REQUIRED if name not in facts] + ([] if verdicts else ["contracts"])
    if missing:
        raise ValueError(
            f"{path.name}: {', '.join(missing)} missing; write the report again: attnscope bench device --report"
        )
    return Report(path.name, facts, verdicts)


def read_reports(folder: Path = REPORTS) -> list[Report]:
    """Read all reports, in the order of their names."""
    return [read_report(path) for path in sorted(folder.glob("*.md"))]


def compiled_architectures(folder: Path = RESULTS) -> set[str]:
    """Return the architectures in the newest report of compiled kernels; none without such a report."""
    reports = sorted(folder.glob("kernels_*.md"))
    return set(re.findall(r"\b(?:sm_|gfx)\d+\b", reports[-1].read_text(encoding="utf-8"))) if reports else set()


def status(architecture: str, compiled: Collection[str]) -> str:
    """Say what is known of an architecture without a report.

    >>> status("sm_90", {"sm_90"}), status("xpu", {"sm_90"})
    ('compiled and simulated, never run', 'never run')
    """
    ways = ["compiled"] * (architecture in compiled) + ["simulated"] * (architecture in SIMULATED)
    return ", ".join([" and ".join(ways)] * bool(ways) + ["never run"])


def table(reports: Sequence[Report], compiled: Collection[str]) -> list[str]:
    """Return the lines of the table: devices with a report, then the others."""
    lines = ["| device | architecture | status |", "|---|---|---|"]
    for report in reports:
        facts = report.facts
        holding = f"{report.verdicts.count('holds')} of {len(report.verdicts)} contracts hold"
        versions = ", ".join(
            [f"torch {facts['torch']}", *(facts[name] for name in ("runtime",) if name in facts), facts["system"]]
        )
        link = f"[report](../benchmarks/results/devices/{report.file}) of {facts['date']}"
        lines.append(f"| {facts['device']} | {facts['architecture']} | **run**: {holding}, {versions}, {link} |")
    run = {report.facts["architecture"] for report in reports}
    lines += [f"| {name} | {one} | {status(one, compiled)} |" for one, name in DEVICES.items() if one not in run]
    return lines


def with_table(page: str, lines: Sequence[str]) -> str:
    """Return the page with these lines as its table."""
    before, rest = page.split(BEGIN)
    return before + "\n".join([BEGIN, *lines, END]) + rest.split(END)[1]


def main() -> int:
    """Write the table."""
    PAGE.write_text(
        with_table(PAGE.read_text(encoding="utf-8"), table(read_reports(), compiled_architectures())), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
