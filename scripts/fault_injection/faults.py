"""Random faults: which there are, and how one is drawn from a seed and a number."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from scripts.fault_injection.scenarios import SCENARIOS

KINDS = {
    "kill": "SIGKILL at a file operation, or a moment later",
    "sigterm": "SIGTERM at a file operation, or a moment later",
    "enospc": "no space left on the device: a small file system, or failing writes",
    "eio": "input/output error at one file operation, or from one on",
    "truncate": "a file that was written loses its end",
    "flip": "one bit of a file that was written changes",
    "vanish": "the folder with the input disappears while the command runs",
    "second": "a second process runs the same command at the same time",
    "clock": "the clock jumps by a day, in the process or in a second one",
}
DAMAGES = ("truncate", "flip")


@dataclass(frozen=True)
class Fault:
    """One fault; the numbers between 0 and 1 become operations, files and bytes once the undisturbed run is known."""

    seed: int
    number: int
    scenario: str
    kind: str
    place: float
    """Where: the operation of the run, the byte of the file, or the size of the file system."""
    choice: float
    """Which file is damaged."""
    bit: int
    variant: bool
    """The second variant of a kind: an error that lasts, a process that is killed later, a file system, a clock of a
    second process."""
    unfinished: bool
    """Whether a run is damaged that was interrupted, or saving replaces an older result."""
    delay: float
    """Seconds."""

    @property
    def id(self) -> str:
        """Repeats it, as `scripts/faults --repeat ID`."""
        return f"{self.seed}.{self.number}"


def draw_fault(seed: int, number: int) -> Fault:
    """Draw a fault; numbers in sequence go through all kinds in all scenarios, in a random order.

    >>> draw_fault(0, 7) == draw_fault(0, 7), draw_fault(0, 7) == draw_fault(0, 8)
    (True, False)
    """
    pairs = list(product(SCENARIOS, KINDS))
    random.Random(seed).shuffle(pairs)
    scenario, kind = pairs[number % len(pairs)]
    dice = random.Random(f"{seed}.{number}")
    return Fault(
        seed=seed,
        number=number,
        scenario=scenario,
        kind=kind,
        place=dice.random(),
        choice=dice.random(),
        bit=dice.randrange(8),
        variant=dice.random() < 0.5,
        unfinished=dice.random() < 0.5,
        delay=dice.uniform(0.0, 0.1),
    )


def parse_id(text: str) -> Fault:
    """The fault with an id."""
    seed, _, number = text.partition(".")
    return draw_fault(int(seed), int(number))


def damage_file(path: Path, fault: Fault) -> str:
    """Damage a file as a bad disk does, without a new time of change; returns what was done."""
    status, content = path.stat(), bytearray(path.read_bytes())
    place = int(fault.place * len(content))
    if fault.kind == "truncate":
        done = f"cut after {place:,} of {len(content):,} bytes"
        del content[place:]
    else:
        done = f"bit {fault.bit} of byte {place:,} of {len(content):,} flipped"
        content[place] ^= 1 << fault.bit
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return done
