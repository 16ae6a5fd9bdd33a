"""Disturb surveys, training runs, traces and model files with random faults, and check what is left.

A fault is one of: a signal, a full disk, an input/output error, a truncated file, a flipped bit, a folder that
disappears, a second process, a clock that jumps. See docs/reliability.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

from scripts.fault_injection.campaign import Campaign, Verdict, table
from scripts.fault_injection.faults import Fault, draw_fault, parse_id
from scripts.fault_injection.processes import ROOT, prepare_environment
from scripts.fault_injection.scenarios import SCENARIOS

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- made by scripts/faults --write-table -->", "<!-- end of scripts/faults -->"


def main() -> int:
    """Run the faults that were asked for; 1 if a promise was not kept."""
    options = parse()
    prepare_environment()
    faults = [parse_id(id) for id in options.repeat] if options.repeat else choose(options)
    folder = Path(tempfile.mkdtemp(prefix="attnscope-faults-"))
    verdicts = run_all(faults, folder, options.processes)
    print(f"\n{table(verdicts)}\n")
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    for verdict in bad:
        print(f"{verdict.outcome}: {describe(verdict)}; repeat: scripts/faults --repeat {verdict.fault.id}")
    if bad or options.keep:
        print(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    if options.write_table:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(verdicts), options), encoding="utf-8")
    return 1 if bad else 0


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="number of faults (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other faults (default: 0)")
    parser.add_argument("--only", choices=list(SCENARIOS), help="faults of one scenario")
    parser.add_argument("--repeat", action="append", metavar="ID", help="this fault; repeat for several")
    parser.add_argument("--processes", type=int, default=1, help="faults at a time (default: 1)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with inputs, results and logs")
    parser.add_argument("--write-table", action="store_true", help="write the table to docs/reliability.md")
    return parser.parse_args()


def choose(options: argparse.Namespace) -> list[Fault]:
    """The first faults of a seed, of one scenario if one was asked for."""
    drawn: Iterator[Fault] = (draw_fault(options.seed, number) for number in count())
    return list(islice((f for f in drawn if options.only in (None, f.scenario)), options.count))


def run_all(faults: Sequence[Fault], folder: Path, processes: int) -> list[Verdict]:
    """Run faults, and print a line about each."""
    scenarios = list(dict.fromkeys(fault.scenario for fault in faults))
    own, started, done = threading.local(), time.monotonic(), count(1)
    numbers = count()

    def run(fault: Fault) -> Verdict:
        if not hasattr(own, "campaign"):  # one for each thread
            own.campaign = Campaign(folder / str(next(numbers)), scenarios)
        verdict = own.campaign.run(fault)
        seconds = time.monotonic() - started
        print(f"{seconds:6.0f} s  {next(done):3}/{len(faults)}  {verdict.outcome:9}  {describe(verdict)}", flush=True)
        return verdict

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(run, faults))


def describe(verdict: Verdict) -> str:
    """A fault and what became of it, in one line."""
    fault = verdict.fault
    reason = f" -> {verdict.reason[:300]}" if verdict.reason else ""
    return f"{fault.id} {fault.kind} {fault.scenario}: {verdict.description}{reason}"


def with_table(text: str, made: str, options: argparse.Namespace) -> str:
    """The page with a new table."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    command = f"`scripts/faults --count {options.count} --seed {options.seed}`"
    return f"{before}{BEGIN}\n{command} on {time.strftime('%Y-%m-%d', time.gmtime())}:\n\n{made}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
