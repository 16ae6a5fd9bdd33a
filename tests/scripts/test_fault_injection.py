"""The fault campaign disturbs what it says, notices broken promises, and finds none in a tenth of its faults."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.fault_injection import __main__ as command
from scripts.fault_injection.campaign import BAD, OUTCOMES, Campaign, Verdict, hash_files, table
from scripts.fault_injection.faults import KINDS, Fault, damage_file, draw_fault, parse_id
from scripts.fault_injection.file_layer import Disturbance
from scripts.fault_injection.processes import Job, prepare_environment
from scripts.fault_injection.scenarios import SCENARIOS, Scenario

SAMPLE = ("0.22", "0.31", "0.32", "0.36", "0.37", "0.39", "0.41", "0.54", "0.55", "0.146")
"""A tenth of the campaign: faults of every kind, in every scenario."""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
            patch.setenv(name, os.environ.get(name, ""))
        prepare_environment()
        yield Campaign(tmp_path_factory.mktemp("campaign") / "0")


@pytest.mark.parametrize(
    "fault", [parse_id(id) for id in SAMPLE], ids=lambda fault: f"{fault.scenario}-{fault.kind}-{fault.id}"
)
def test_a_fault_changes_nothing_in_silence(campaign: Campaign, fault: Fault) -> None:
    verdict = campaign.run(fault)
    assert verdict.is_good, command.describe(verdict)


def test_the_sample_has_every_kind_and_every_scenario() -> None:
    faults = [parse_id(id) for id in SAMPLE]
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.scenario for fault in faults} == set(SCENARIOS)


def test_faults_are_drawn_again_by_their_id() -> None:
    faults = [draw_fault(3, number) for number in range(72)]
    assert [parse_id(fault.id) for fault in faults] == faults
    pairs = [(fault.scenario, fault.kind) for fault in faults]
    assert len(set(pairs[:36])) == 36
    assert pairs[:36] == pairs[36:]
    assert faults[0].place != faults[36].place


def write_units(mode: str) -> int:
    """Write four files, one unit of work each; all modes but `good` break a promise."""
    number, out = Path("input/number").read_text(encoding="ascii"), Path("disk/out")
    out.mkdir(exist_ok=True)
    for unit in range(4):
        path = out / f"{unit}.unit"
        if path.exists() and mode != "lost":
            continue
        try:
            path.with_suffix(".part").write_text(f"{unit} {number}", encoding="ascii")
            path.with_suffix(".part").replace(path)
        except OSError as error:
            if mode == "traceback":
                raise
            if mode != "silent":
                sys.stderr.write(f"attnscope: {error}; run it again\n")
                return 2
            path.write_text("0", encoding="ascii")
    for left in out.glob("*.part"):
        left.unlink()
    return 0


def read_units() -> int:
    """Print the files, of which there have to be four."""
    found = [path.read_text(encoding="ascii", errors="replace") for path in sorted(Path("disk/out").glob("*.unit"))]
    sys.stdout.write(repr(found))
    if len(found) != 4 or "" in found:
        sys.stderr.write("attnscope: units are missing\n")
        return 2
    return 0


class Units(Scenario):
    """Four files."""

    name = "units"
    mode = "good"
    inputs = ("input",)
    can_be_half_done = True

    def make_input(self) -> None:
        (self.folder / "input").mkdir(parents=True)
        (self.folder / "disk").mkdir()
        (self.folder / "input" / "number").write_text("7", encoding="ascii")

    def write(self) -> Job:
        return self._job(write_units, self.mode)

    def read(self) -> Job:
        return self._job(read_units)

    def complete_work(self) -> Mapping[str, Any]:
        return {path.name: path.stat().st_ino for path in self.out.glob("*.unit")}

    def repair(self, damaged: Path, intact: bytes) -> None:
        damaged.unlink()


def fault_in_units(kind: str, **changes: Any) -> Fault:
    drawn = {"place": 0.5, "choice": 0.3, "bit": 0, "variant": False, "unfinished": False, "delay": 0.0}
    return Fault(seed=0, number=0, scenario="units", kind=kind, **drawn | changes)


@pytest.mark.parametrize(
    ("mode", "kind", "outcome"),
    [
        ("good", "kill", "identical"),
        ("good", "sigterm", "identical"),
        ("good", "clock", "identical"),
        ("good", "eio", "refused"),
        ("good", "truncate", "refused"),
        ("silent", "eio", "silent"),
        ("silent", "flip", "silent"),
        ("traceback", "eio", "traceback"),
        ("lost", "kill", "lost"),
    ],
)
def test_outcomes(mode: str, kind: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS, "units", Units)
    monkeypatch.setattr(Units, "mode", mode)
    place = 0.0 if kind == "truncate" else 0.5
    verdict = Campaign(tmp_path / "0", ["units"]).run(fault_in_units(kind, place=place))
    assert (verdict.outcome, verdict.is_good) == (outcome, outcome not in BAD), verdict.reason
    assert verdict.description
    assert not (tmp_path / "0" / "units" / "disk" / "out").exists()


def layer_in_a_process(folder: Path, code: str, *disturbance: object) -> subprocess.CompletedProcess[str]:
    """Run code with a file layer over a folder."""
    given = ", ".join(map(repr, disturbance))
    program = (
        "from pathlib import Path\nimport os, time\n"
        "from scripts.fault_injection.file_layer import Disturbance, FileLayer\n"
        f"folder = Path({str(folder)!r})\n"
        f"layer = FileLayer([folder], {f'Disturbance({given})' if disturbance else None})\nlayer.install()\n{code}"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=command.ROOT)


WRITE = "(folder / 'a').write_bytes(b'x' * 10)\nprint(layer.operations)"


def test_the_layer_counts_operations_in_its_folder_only(tmp_path: Path) -> None:
    elsewhere = f"Path({str(tmp_path / 'b')!r}).write_bytes(b'y')"
    (tmp_path / "in").mkdir()
    ran = layer_in_a_process(tmp_path / "in", f"{elsewhere}\n{WRITE}\nprint((folder / 'a').read_text())")
    assert ran.stdout == f"2\n{'x' * 10}\n", ran.stderr


@pytest.mark.parametrize(("action", "number"), [("EIO", errno.EIO), ("ENOSPC", errno.ENOSPC)])
def test_an_error_leaves_half_of_a_write(action: str, number: int, tmp_path: Path) -> None:
    ran = layer_in_a_process(tmp_path, WRITE, action, 2)
    assert os.strerror(number) in ran.stderr
    assert (tmp_path / "a").read_bytes() == b"x" * 5


def test_an_error_lasts_if_it_should(tmp_path: Path) -> None:
    twice = "for name in 'ab':\n  try: (folder / name).write_bytes(b'x')\n  except OSError: print(name)"
    assert layer_in_a_process(tmp_path, twice, "EIO", 1).stdout == "a\n"
    assert layer_in_a_process(tmp_path, twice, "EIO", 1, True).stdout == "a\nb\n"


def test_only_operations_that_need_space_fail_without_space(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"there")
    code = f"print((folder / 'b').read_text(), flush=True)\n{WRITE}"
    ran = layer_in_a_process(tmp_path, code, "ENOSPC", 1, True)
    assert (ran.stdout, "No space left" in ran.stderr) == ("there\n", True)


def test_a_signal_comes_at_the_operation(tmp_path: Path) -> None:
    assert layer_in_a_process(tmp_path, WRITE, "SIGKILL", 1).returncode == -9
    assert layer_in_a_process(tmp_path, WRITE, "SIGTERM", 2).returncode == -15


def test_a_folder_disappears_and_the_clock_jumps(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    layer_in_a_process(tmp_path, WRITE, "rename", 1, False, 0.0, str(tmp_path / "in"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "in.away"]
    jumped = layer_in_a_process(tmp_path, f"{WRITE}\nprint(time.time())", "clock", 1, False, 0.0, "", -1.0).stdout
    assert float(jumped.split()[1]) == pytest.approx(time.time() - 86_400, abs=3600)


def test_an_unknown_action_is_an_error() -> None:
    from scripts.fault_injection.file_layer import FileLayer

    with pytest.raises(ValueError, match="unknown action 'melt'"):
        FileLayer([], Disturbance("melt", 1)).step(writes=True)


def test_damage_keeps_the_time_of_change(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    os.utime(path, ns=(1, 2))
    assert damage_file(path, fault_in_units("flip", bit=3)) == "bit 3 of byte 50 of 100 flipped"
    assert path.read_bytes() == bytes(50) + b"\x08" + bytes(49)
    assert damage_file(path, fault_in_units("truncate")) == "cut after 50 of 100 bytes"
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (bytes(50), 2)


def test_times_and_hidden_files_are_not_compared(tmp_path: Path) -> None:
    for name in ("a.parquet", "partials/0.partial", "log.json", ".lock", "checkpoints/step/x", "partials/.x.tmp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert set(hash_files(tmp_path)) == {"a.parquet", "partials/0.partial"}


def test_the_table_counts_outcomes() -> None:
    verdicts = [Verdict(fault_in_units(kind), "", outcome, "") for kind, outcome in
                (("kill", "identical"), ("kill", "lost"), ("eio", "refused"))]  # fmt: skip
    lines = table(verdicts).splitlines()
    assert lines[0] == f"| fault | scenario | count | {' | '.join(OUTCOMES)} |"
    assert lines[2:] == [
        "| eio | units | 1 | 0 | 1 | 0 | 0 | 0 | 0 |",
        "| kill | units | 2 | 1 | 0 | 0 | 1 | 0 | 0 |",
        "| all | all | 3 | 1 | 1 | 0 | 1 | 0 | 0 |",
    ]


def test_the_page_has_both_markers_once() -> None:
    text = command.PAGE.read_text(encoding="utf-8")
    assert (text.count(command.BEGIN), text.count(command.END)) == (1, 1)
