"""H2O scores of key-value pairs by AttnScope and by kvpress: how far they differ, and what they cost.

kvpress is installed into an environment of its own, because it needs an older transformers. Each point is measured in a
fresh process with a memory limit, and scores are compared through files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import benchmarks.peers.scripts.pair_scores as script
from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from benchmarks.peers import SHARE, SMOLLM2, find_model, machine_memory, write_text
from benchmarks.peers.capped_process import Outcome, run_capped
from benchmarks.peers.environments import cache_folder, python_with, versions_in

REQUIREMENTS = ("kvpress==0.5.5",)
SECONDS = 7200.0


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Score pairs by both; yield how far they differ, and what they cost."""
    lengths = size.choose(small=(128, 256), full=(512, 2048, 32_768))
    step("installing kvpress")
    kvpress = python_with(REQUIREMENTS, cache_folder() / "kvpress")
    versions = versions_in(kvpress)
    limit = machine_memory() * SHARE
    with TemporaryDirectory() as place:
        folder = Path(place)
        model = find_model(size.choose(small=(), full=SMOLLM2), folder, step)
        write_text(model, max(lengths), folder / "text.json")
        cost = Table(
            title="Cost of H2O scores",
            comparison=f"{model.name}, float32, one thread: read the text and score all pairs. kvpress "
            f"{versions['kvpress']} with transformers {versions['transformers']} and eager attention; AttnScope with "
            f"the model's fused kernel. Memory is that above the loaded model.",
            columns=("tokens", "method", "memory", "CPU time", "time"),
        )
        difference = Table(
            title="H2O scores of AttnScope and kvpress",
            comparison="Scores of ObservedAttentionPress and of the policy `received`, compared through files; the "
            "pairs that both keep of half of the pairs.",
            columns=("tokens", "pairs", "largest difference", "largest score", "same kept pairs"),
        )
        for length in lengths:
            found = {}
            for name, python in (("kvpress", kvpress), ("attnscope", Path(sys.executable))):
                step(f"{name}, {length:,} tokens")
                file = folder / f"{name}.pt"
                found[name] = file
                outcome = run(python, name, model, folder / "text.json", length, file, limit)
                cost.add(f"{length:,}", name, *cells(outcome))
            if all(file.exists() for file in found.values()):
                difference.add(*compare(length, *(torch.load(file) for file in found.values())))
                for file in found.values():
                    file.unlink()
        yield difference
        yield cost


def run(python: Path, name: str, model: Path, text: Path, length: int, out: Path, limit: float) -> Outcome:
    """Score pairs in a fresh process."""
    command = [str(python), str(script.__file__), name, str(model), str(text), str(length), str(out)]
    own = {"PYTHONPATH": os.environ.get("PYTHONPATH", "") if name == "attnscope" else ""}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": "1"}
    return run_capped(command, memory=limit, seconds=SECONDS, environment=environment)


def cells(outcome: Outcome) -> tuple[str, str, str]:
    """Memory, CPU time and time; or why there is none."""
    if outcome.answer is None:
        return outcome.stopped, "-", "-"
    extra = outcome.answer["extra_bytes"] / 1e6
    return f"{extra:,.0f} MB", duration(outcome.answer["cpu_seconds"]), duration(outcome.answer["seconds"])


def compare(length: int, theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]) -> tuple[str, ...]:
    """The row of one length."""
    same = 0
    for one, other in zip(theirs["kept"].flatten(0, 1), ours["kept"].flatten(0, 1), strict=True):
        same += int(torch.isin(one, other).sum())
    difference = float((theirs["scores"] - ours["scores"]).abs().max())
    return (
        f"{length:,}",
        f"{ours['scores'].numel():,}",
        f"{difference:.1e}",
        f"{float(theirs['scores'].max()):.2f}",
        f"{same:,} of {theirs['kept'].numel():,}",
    )
