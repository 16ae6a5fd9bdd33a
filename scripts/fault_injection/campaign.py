"""Applies faults to scenarios, and judges what is left.

Of each scenario there is one undisturbed run. A disturbed run has to end with the same files and numbers, or with one
sentence and a non-zero exit code; then the same command, run again, has to end with the same files and numbers, without
doing complete work again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from scripts.fault_injection.faults import DAMAGES, Fault, damage_file
from scripts.fault_injection.file_layer import Disturbance, away
from scripts.fault_injection.processes import Ended, Job, Running, run
from scripts.fault_injection.scenarios import SCENARIOS, Scenario

GOOD = ("identical", "refused")
BAD = ("silent", "lost", "traceback", "hung")
OUTCOMES = {
    "identical": "ended with the same files and numbers, at once or when it was resumed after a signal",
    "refused": "ended with one sentence; resumed, it ended with the same files and numbers",
    "silent": "ended with success and with other files or numbers",
    "lost": "did complete work again, or could not be resumed",
    "traceback": "printed a traceback, or no sentence",
    "hung": "did not end in time",
}
UNCOMPARED = ("log.json", "run.json", "metrics.jsonl", "checkpoints", "events", "heads")
"""Files with times in them; what matters of them is read."""
PAGE_BYTES = 4096
HALF = 0.6
"""Where the run of the half-finished state is killed, as a fraction of its operations."""


@dataclass(frozen=True)
class Verdict:
    """What became of a fault."""

    fault: Fault
    description: str
    outcome: str
    reason: str

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return self.outcome in GOOD


class Violation(Exception):  # noqa: N818 - a result of the campaign
    """A promise that was not kept."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


@dataclass(frozen=True)
class Reference:
    """The undisturbed run of a scenario."""

    numbers: str
    files: Mapping[str, str]
    operations: int
    old_numbers: str | None


class Campaign:
    """Runs faults one after the other, in one folder.

    Args:
        folder: An empty folder; paths in it are part of the results.
        scenarios: The names of the scenarios.
    """

    def __init__(self, folder: Path, scenarios: Sequence[str] = tuple(SCENARIOS)) -> None:
        self.folder = folder
        self.can_mount = _can_mount(folder / "mount")
        self._scenarios = {name: SCENARIOS[name](folder / name) for name in scenarios}
        self._references: dict[str, Reference] = {}

    def run(self, fault: Fault) -> Verdict:
        """Apply a fault, and judge."""
        scenario, reference = self._scenarios[fault.scenario], self._reference(fault.scenario)
        trial = Trial(fault, scenario, reference, self._logs(fault), self._state, self.can_mount)
        try:
            outcome, reason = trial.damage() if fault.kind in DAMAGES else trial.disturb()
        except Violation as violation:
            outcome, reason = violation.outcome, violation.reason
        finally:
            trial.clean()
        return Verdict(fault, trial.description, outcome, reason)

    def _reference(self, name: str) -> Reference:
        if name not in self._references:
            self._references[name] = self._make_reference(self._scenarios[name])
        return self._references[name]

    def _make_reference(self, scenario: Scenario) -> Reference:
        """Run everything undisturbed, and keep the states that faults start from."""
        scenario.make_input()
        old_numbers = None
        if (old := scenario.write_old()) is not None:
            self._succeed(old, scenario.name, "old")
            old_numbers = self._succeed(scenario.read(), scenario.name, "read-old").output
            self._keep(scenario, "old")
        written = self._succeed(scenario.write(), scenario.name, "write")
        numbers = self._succeed(scenario.read(), scenario.name, "read").output
        files = hash_files(scenario.out)
        self._keep(scenario, "done")
        if scenario.can_be_half_done:
            kill = Disturbance("SIGKILL", int(HALF * written.operations))
            run(scenario.write(), self.folder / "logs" / scenario.name / "half", kill)
            self._keep(scenario, "half")
        return Reference(numbers, files, written.operations, old_numbers)

    def _succeed(self, job: Job, *names: str) -> Ended:
        ended = run(job, self.folder.joinpath("logs", *names))
        if ended.code != 0:
            raise RuntimeError(f"the undisturbed run {' '.join(names)} ended with {ended.code}:\n{ended.errors}")
        return ended

    def _keep(self, scenario: Scenario, state: str) -> None:
        place = self._state(scenario, state)
        place.parent.mkdir(parents=True, exist_ok=True)
        scenario.out.rename(place)

    def _state(self, scenario: Scenario, state: str) -> Path:
        return self.folder / "states" / scenario.name / state

    def _logs(self, fault: Fault) -> Path:
        return self.folder / "logs" / fault.id


class Trial:
    """One fault in one scenario."""

    def __init__(
        self, fault: Fault, scenario: Scenario, reference: Reference, logs: Path, state: Any, can_mount: bool
    ) -> None:
        self.fault, self.scenario, self.reference, self.logs = fault, scenario, reference, logs
        self.description = ""
        self._state, self._can_mount, self._mounted = state, can_mount, False

    def disturb(self) -> tuple[str, str]:
        """Disturb the command while it runs, and resume it if it did not succeed."""
        if self.fault.unfinished and self.reference.old_numbers is not None and not self._uses_mount:
            shutil.copytree(self._state(self.scenario, "old"), self.scenario.out)
            self.description = "replaces an older result; "
        processes = self._run_disturbed()
        for ended in processes:
            check_end(ended)
        refusals = [ended for ended in processes if ended.refused]
        if all(ended.code for ended in processes):
            self._check_unfinished()
            before = self.scenario.complete_work()
            self._resume(before)
        elif repeated := self.scenario.repeated_work():
            raise Violation("lost", f"two processes did the same work: {repeated}")
        self._compare()
        return ("refused", last_line(refusals[0])) if refusals else ("identical", "")

    def damage(self) -> tuple[str, str]:
        """Damage a file of a result, and use it."""
        state = "half" if self.fault.unfinished and self.scenario.can_be_half_done else "done"
        shutil.copytree(self._state(self.scenario, state), self.scenario.out)
        files = [path for path in sorted(self.scenario.out.rglob("*")) if self._is_damageable(path)]
        damaged = files[int(self.fault.choice * len(files))]
        name = damaged.relative_to(self.scenario.out)
        before = {unit: stamp for unit, stamp in self.scenario.complete_work().items() if unit not in name.parts}
        intact = damaged.read_bytes()
        self.description = f"{name} ({state}): {damage_file(damaged, self.fault)}"
        resumes = self.scenario.can_be_half_done
        ended = self._run(self.scenario.write(), "resumed") if resumes else None
        if ended is None or ended.code == 0:
            used = self._run(self.scenario.read(), "read")
            if used.code == 0:
                if ended is not None:
                    self._check_lost(before, ended)
                self._compare(except_for=str(name))
                return "identical", ""
            ended = used
        self.scenario.repair(damaged, intact)
        self._resume(before)
        self._compare()
        return "refused", last_line(ended)

    def clean(self) -> None:
        """Bring the input back, and remove the results."""
        self._bring_back()
        if self._mounted:
            subprocess.run(["umount", "--lazy", self._disk], check=True)
            self._mounted = False
        shutil.rmtree(self.scenario.out, ignore_errors=True)

    @property
    def _disk(self) -> Path:
        return self.scenario.out.parent

    @property
    def _uses_mount(self) -> bool:
        return self.fault.kind == "enospc" and self.fault.variant and self._can_mount

    def _is_damageable(self, path: Path) -> bool:
        return path.is_file() and path.stat().st_size > 0 and self.scenario.is_damageable(path)

    def _run_disturbed(self) -> list[Ended]:
        fault = self.fault
        operation = 1 + int(fault.place * self.reference.operations)
        at = f"operation {operation} of {self.reference.operations}"
        if self._uses_mount:
            return [self._run_in_small_space()]
        if fault.kind == "second" or (fault.kind == "clock" and fault.variant):
            days = 0.0 if fault.kind == "second" else self._days
            self.description += f"a second process at {at}" + (f", {days:+.0f} day" if days else "")
            return self._run_two(operation, days)
        disturbance = {
            "kill": Disturbance("SIGKILL", operation, delay=fault.delay if fault.variant else 0.0),
            "sigterm": Disturbance("SIGTERM", operation, delay=fault.delay if fault.variant else 0.0),
            "eio": Disturbance("EIO", operation, lasting=fault.variant),
            "enospc": Disturbance("ENOSPC", operation, lasting=True),
            "vanish": Disturbance("rename", operation, path=str(self._input)),
            "clock": Disturbance("clock", operation, days=self._days),
        }[fault.kind]
        extra = f", {disturbance.delay * 1e3:.0f} ms later" if disturbance.delay else ""
        extra += " and all later ones" if disturbance.lasting else ""
        extra += f", {disturbance.days:+.0f} day" if disturbance.days else ""
        self.description += f"{disturbance.action} at {at}{extra}"
        ended = self._run(self.scenario.write(), "disturbed", disturbance)
        self._bring_back()
        return [ended]

    @property
    def _days(self) -> float:
        return 1.0 if self.fault.choice < 0.5 else -1.0

    @property
    def _input(self) -> Path:
        return self.scenario.folder / self.scenario.inputs[0]

    def _bring_back(self) -> None:
        if os.path.exists(away(self._input)):
            os.rename(away(self._input), self._input)

    def _run_two(self, operation: int, days: float) -> list[Ended]:
        announced = self.logs / "announced"
        first = Running(
            self.scenario.write(), self.logs / "first", Disturbance("announce", operation, path=str(announced))
        )
        first.wait_for(announced)
        second = Running(self.scenario.write(), self.logs / "second", days=days)
        return [first.wait(), second.wait()]

    def _run_in_small_space(self) -> Ended:
        state = self._state(self.scenario, "done")
        needed = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
        size = max(PAGE_BYTES, int(self.fault.place * needed))
        self.description += f"a file system of {size:,} bytes, where the result has {needed:,}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self._disk], check=True)
        self._mounted = True
        ended = self._run(self.scenario.write(), "disturbed")
        subprocess.run(["mount", "-o", "remount,size=1g", self._disk], check=True)
        return ended

    def _check_unfinished(self) -> None:
        """What a reader finds after an interrupted save is the old result, the new one, or an error."""
        if self.reference.old_numbers is None:
            return
        found = self._run(self.scenario.read(), "read-unfinished")
        if found.code == 0 and found.output not in (self.reference.numbers, self.reference.old_numbers):
            raise Violation("silent", "an incomplete result can be read")

    def _resume(self, before: Mapping[str, Any]) -> None:
        resumed = self._run(self.scenario.write(), "resumed-again")
        if resumed.code != 0:
            raise Violation("lost", f"cannot be resumed: {last_line(resumed)}")
        self._check_lost(before, resumed)

    def _check_lost(self, before: Mapping[str, Any], resumed: Ended) -> None:
        if lost := self.scenario.lost_work(before, resumed):
            raise Violation("lost", f"done again: {lost}")

    def _compare(self, except_for: str = "") -> None:
        found = self._run(self.scenario.read(), "read-result")
        if found.code != 0:
            raise Violation("silent", f"success was reported, but the result cannot be read: {last_line(found)}")
        if found.output != self.reference.numbers:
            raise Violation("silent", f"other numbers: {first_difference(found.output, self.reference.numbers)}")
        files = hash_files(self.scenario.out)
        names = {name for name in files.keys() | self.reference.files.keys() if name != except_for}
        if other := sorted(name for name in names if files.get(name) != self.reference.files.get(name)):
            raise Violation("silent", f"other files: {', '.join(other[:3])}")

    def _run(self, job: Job, name: str, disturbance: Disturbance | None = None) -> Ended:
        ended = run(job, self.logs / name, disturbance)
        check_end(ended)
        return ended


def check_end(ended: Ended) -> None:
    """Raise a violation unless a process ended in time, and with a sentence if it failed."""
    if ended.code is None:
        raise Violation("hung", "did not end in time")
    if ended.has_traceback:
        raise Violation("traceback", last_line(ended))
    if ended.refused and not ended.has_sentence:
        raise Violation("traceback", f"exit code {ended.code} without a sentence: {last_line(ended)}")


def last_line(ended: Ended) -> str:
    """The last line on standard error."""
    return next((line for line in reversed(ended.errors.splitlines()) if line.strip()), f"exit code {ended.code}")


def first_difference(found: str, expected: str) -> str:
    """The surroundings of the first character in which two texts differ."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False))
    place = sum(1 for _ in same)
    start = max(place - 40, 0)
    return f"{found[start : place + 20]!r} instead of {expected[start : place + 20]!r}"


def hash_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of all files of a result, by name."""
    names = {path: path.relative_to(folder).parts for path in folder.rglob("*") if path.is_file()}
    compared = {
        path: "/".join(parts)
        for path, parts in names.items()
        if parts[0] not in UNCOMPARED and not any(part.startswith(".") or part.endswith(".lock") for part in parts)
    }
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for path, name in compared.items()}


def table(verdicts: Sequence[Verdict]) -> str:
    """The number of faults by kind, scenario and outcome, in Markdown."""
    columns = ("fault", "scenario", "count", *OUTCOMES)
    rows = [columns, tuple("---" for _ in columns)]
    pairs = sorted({(verdict.fault.kind, verdict.fault.scenario) for verdict in verdicts})
    for kind, scenario in [*pairs, ("all", "all")]:
        of_pair = [v for v in verdicts if kind == "all" or (v.fault.kind, v.fault.scenario) == (kind, scenario)]
        counts = [sum(verdict.outcome == outcome for verdict in of_pair) for outcome in OUTCOMES]
        rows.append((kind, scenario, str(len(of_pair)), *map(str, counts)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def to_json(verdict: Verdict) -> str:
    """One line about a fault."""
    fault = verdict.fault
    return json.dumps(
        {"id": fault.id, "scenario": fault.scenario, "kind": fault.kind, "description": verdict.description}
        | {"outcome": verdict.outcome, "reason": verdict.reason}
    )


def _can_mount(place: Path) -> bool:
    """Whether this process may mount a file system."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=4096", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", place], check=True)
    return True
