"""Measures the HTML pages of the libraries: size, time to write, and time to the first picture.

A library stops at the first sequence length at which its page fails or shows nothing in time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from attnscope.bench.report import Table, duration
from attnscope.formatting import format_bytes
from benchmarks.peers import browser
from benchmarks.peers import scripts as page_scripts
from benchmarks.peers.capped_process import TOO_LONG, Outcome, run_capped
from benchmarks.peers.costs import Bench, run
from benchmarks.peers.libraries import BERTVIZ, Page

SCRIPT = Path(str(page_scripts.__file__)).parent / "page.py"
TIMEOUT_SECONDS = 180.0  # for a page to show something
STARTUP_SECONDS = 60.0  # for the browser itself

PACKAGES = {
    "**/require.min.js": ("requirejs@2.3.6", "require.js"),
    "**/d3.min.js": ("d3@5.7.0", "dist/d3.min.js"),
    "**/jquery.min.js": ("jquery@2.1.0", "dist/jquery.min.js"),  # npm has no 2.0.0, which the pages name
}
"""Scripts that pages of BertViz load from a content delivery network, as npm packages."""


class Shown(NamedTuple):
    """The outcomes of writing a page and of opening it."""

    made: Outcome
    seen: Outcome | None = None


def measure(
    pages: Sequence[Page], lengths: Sequence[int], bench: Bench, folder: Path, step: Callable[[str], None]
) -> dict[tuple[Page, int], Shown]:
    """Measure every page at every length, from short to long, until it fails or shows nothing."""
    found = {}
    scripts = local_scripts(folder / "scripts") if any(page.library == BERTVIZ for page in pages) else {}
    for page in pages:
        if page.library not in bench.pythons:
            continue
        for length in lengths:
            step(f"{page.title}, {length:,} tokens")
            shown = found[page, length] = one(page, length, bench, scripts)
            if shown.made.stopped or shown.seen is None or shown.seen.stopped:
                break
    return found


def one(page: Page, length: int, bench: Bench, scripts: dict[str, str]) -> Shown:
    """Write a page and open it."""
    return Shown(*bench.points.get(f"{page.script}-{length}", lambda: _write_and_open(page, length, bench, scripts)))


def _write_and_open(page: Page, length: int, bench: Bench, scripts: dict[str, str]) -> list[Outcome]:
    file = bench.text.with_suffix(".html")
    (made,) = run([bench.pythons[page.library], SCRIPT, page.script, bench.model, bench.text, length, file], bench)
    if made.stopped:
        return [made]
    try:
        arguments = [file, page.shown, TIMEOUT_SECONDS, json.dumps(scripts)]
        seen = run_capped(
            [sys.executable, browser.__file__, *map(str, arguments)],
            memory=bench.memory,
            seconds=TIMEOUT_SECONDS + STARTUP_SECONDS,
            environment=os.environ | {"TMPDIR": str(file.parent)},  # a stopped browser leaves its profile there
        )
    finally:
        file.unlink(missing_ok=True)
    if "crashed" in seen.stopped:
        seen = seen._replace(stopped="the page crashed")
    if seen.answer is not None and seen.answer["seconds"] is None:
        seen = seen._replace(answer=None, stopped=TOO_LONG)
    return [made, seen]


def local_scripts(folder: Path) -> dict[str, str]:
    """Download these scripts once with npm; return URL patterns and files, or nothing without npm."""
    names = {
        address: folder / "node_modules" / package.split("@")[0] / path for address, (package, path) in PACKAGES.items()
    }
    if not all(path.exists() for path in names.values()):
        npm = shutil.which("npm")
        if npm is None:
            return {}
        folder.mkdir(parents=True, exist_ok=True)
        packages = [package for package, _ in PACKAGES.values()]
        command = [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", *packages]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return {}
    return {address: str(path) for address, path in names.items()}


def table(shown: dict[tuple[Page, int], Shown], about: str, memory: float) -> Table:
    """Return the table with a row for each page."""
    found = Table(
        title="pages",
        comparison=f"{about} Made: from the loaded model to the file, the pass included. First picture: from the "
        f"address to the first painted frame with weights in it, in a headless Chromium, {TIMEOUT_SECONDS:g} seconds "
        "at most; scripts that pages load from elsewhere are answered from the disk. Peak: the browser and what "
        f"drives it. A process that used more than {format_bytes(memory)} was stopped.",
        columns=("page", "n", "heads", "HTML", "made in", "first picture", "elements", "peak memory of the browser"),
    )
    for (page, length), (made, seen) in shown.items():
        if made.answer is None:
            found.add(page.title, f"{length:,}", "-", "-", made.stopped, *["-"] * 3)
            continue
        answer = made.answer
        cells = f"{length:,}", f"{answer['heads']:,}", format_bytes(answer["bytes"]), duration(answer["seconds"])
        if seen is None or seen.answer is None:
            why = (
                "-" if seen is None else f"none in {TIMEOUT_SECONDS:g} s" if seen.stopped == TOO_LONG else seen.stopped
            )
            found.add(page.title, *cells, why, "-", "-" if seen is None else format_bytes(seen.peak))
            continue
        picture = duration(seen.answer["seconds"])
        found.add(page.title, *cells, picture, f"{seen.answer['nodes']:,}", format_bytes(seen.peak))
    return found
