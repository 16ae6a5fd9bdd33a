"""Runs `attnscope publish` as a process of its own, and reads the site that it wrote.

In: a saved trace. Out: time, CPU time and memory of the process; bytes by what they are; and the ranges of tiles.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.errors import SettingError
from benchmarks.peers.capped_process import private_bytes, process_tree
from benchmarks.publishing.load import Target

BUDGET = "100TB"
WORKERS = os.cpu_count() or 1
POLL_SECONDS = 0.1
ITEM_BYTES = {"f32": 4, "u32": 4, "f16": 2, "bf16": 2}


class Publication(NamedTuple):
    """The cost of publishing, and the size of the site."""

    seconds: float
    cpu_seconds: float
    """Of all processes."""
    private_bytes: int
    """The largest private memory of all processes together."""
    resident_bytes: int
    """The largest memory of one process, with mapped files: pages of the trace, which the system can drop."""
    num_files: int
    num_bytes: int


class SiteBytes(NamedTuple):
    """The bytes of a site by what they are."""

    tiles: int
    queries_and_keys: int
    numbers: int
    """Arrays of single numbers per token: log-sum-exp, sums, strongest links, norms of values."""
    rest: int
    """Statistics, thumbnails, texts, indexes, scripts and pages."""


def publish(trace: Path, site: Path, heads: str, folder: Path) -> Publication:
    """Run `attnscope publish`; without `heads` for all of them."""
    command = [sys.executable, "-m", "attnscope.cli.main", "publish", str(trace), "--out", str(site)]
    command += ["--budget", BUDGET, "--workers", str(WORKERS), *(["--heads", heads] if heads else [])]
    with (folder / "publish.out").open("wb") as output:
        start, largest, status, usage = time.perf_counter(), 0, None, None
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while status is None:
                largest = max(largest, sum(map(private_bytes, process_tree(process.pid))))
                pid, code, usage = os.wait4(process.pid, os.WNOHANG)
                status = code if pid else None
                time.sleep(0 if pid else POLL_SECONDS)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if status is None:
                process.kill()
                process.wait()
        seconds = time.perf_counter() - start
    if process.returncode != 0 or usage is None:
        raise SettingError(f"publish failed: {(folder / 'publish.out').read_text()[-500:]}")
    files = [path.stat().st_size for path in site.rglob("*") if path.is_file()]
    cpu = usage.ru_utime + usage.ru_stime
    return Publication(seconds, cpu, largest, usage.ru_maxrss * 1024, len(files), sum(files))


def read_indexes(site: Path) -> dict[int, dict[str, Any]]:
    """Return the index of the archives of each layer."""
    return {int(path.parent.name[1:]): json.loads(path.read_bytes()) for path in sorted(site.glob("*/L*/index.json"))}


def count_bytes(site: Path) -> SiteBytes:
    """Sort the bytes of a site."""
    tiles = vectors = numbers = 0
    for index in read_indexes(site).values():
        for archive in (index["layer"], *index["heads"].values()):
            stored = {tuple(found) for name, found in archive["responses"].items() if found and is_tile(name)}
            tiles += sum(length for _, length in stored)
            for name, array in archive["arrays"].items():
                size = array["rows"] * array["width"] * ITEM_BYTES[array["dtype"]]
                is_vector = name == "query" or re.fullmatch(r"key \d+", name) is not None
                vectors += size if is_vector else 0
                numbers += 0 if is_vector else size
    total = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    return SiteBytes(tiles, vectors, numbers, total - tiles - vectors - numbers)


def is_tile(name: str) -> bool:
    """Whether a stored response is a tile: level, row, column and channel."""
    return re.fullmatch(r"\d+/\d+/\d+\?ch=(mean|max)", name) is not None


def tile_targets(site: Path) -> list[Target]:
    """The range request of every stored tile."""
    found = set()
    for index in read_indexes(site).values():
        for archive in index["heads"].values():
            for name, place in archive["responses"].items():
                if place and is_tile(name):
                    offset, length = place
                    found.add(Target(f"/{archive['file']}", "Range", f"bytes={offset}-{offset + length - 1}"))
    return sorted(found)
