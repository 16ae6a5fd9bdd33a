"""What recording and scoring cost: a pass through SmolLM2 with everything recorded, beside the plain pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from attnscope.attention.plan import format_bytes
from attnscope.bench.generate import transformers_model
from attnscope.bench.memory import peak_extra_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race
from attnscope.heads import score_heads
from attnscope.models import Decoder, save
from attnscope.models.sizes import DECODERS
from attnscope.recording import record

MODEL = "smollm2-135m"

MODES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "matrix": {},
    "matrix in bfloat16": {"dtype": torch.bfloat16},
    "statistics": {"keep": "statistics"},
    "matrix, heads scored": {},
}
"""The options of each way to run the pass; None runs it without a recorder."""

BOUND_LENGTH = 8192
BOUNDS = {
    "matrix": (1.10, 1.0e9),
    "matrix in bfloat16": (1.10, 0.5e9),
    "statistics": (3.0, 0.5e9),
    "matrix, heads scored": (5.0, 1.2e9),
}
"""Times the plain pass, and bytes above it, at that length."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How far each measurement goes."""

    length: int
    rounds: int


SIZES = {"small": Size(length=512, rounds=1), "full": Size(length=BOUND_LENGTH, rounds=1)}


def tables(size: str, step: Callable[[str], None]) -> Iterator[Table]:
    """Time and memory of every mode, in one table."""
    chosen = SIZES[size]
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        step("drawing weights")
        save(Decoder(DECODERS[MODEL]), folder)
        ids = torch.randint(DECODERS[MODEL].vocab_size, (1, chosen.length))
        step("time")
        model = transformers_model(Path(folder), torch.float32)
        seconds = race(contestants(model, ids), chosen.rounds, clock=time.process_time)
        del model
        rises = {}
        for mode in MODES:
            step(f"memory, {mode}")
            rises[mode] = peak_extra_bytes(prepared, folder, ids, mode)
    yield costs(chosen, seconds, rises)


def contestants(model: Any, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The same pass in every mode."""
    return {mode: lambda mode=mode: run(model, ids, mode) for mode in MODES}


def run(model: Any, ids: torch.Tensor, mode: str) -> object:
    """One pass without a cache or logits, and the trace of it, with all scores of all heads where they are wanted."""
    options = MODES[mode]
    with torch.no_grad():
        if options is None:
            return model(ids, use_cache=False, logits_to_keep=1)
        with record(model, **options) as trace:
            model(ids, use_cache=False, logits_to_keep=1)
        return (trace, score_heads(trace, progress=False)) if mode.endswith("scored") else trace


def prepared(folder: str, ids: torch.Tensor, mode: str) -> Callable[[], object]:
    """A pass that is ready to run, after a small one."""
    model = transformers_model(Path(folder), torch.float32)
    run(model, ids[:, :64], mode)
    return lambda: run(model, ids, mode)


def costs(size: Size, seconds: dict[str, float], rises: dict[str, int]) -> Table:
    """Each mode beside the plain pass."""
    table = Table(
        title=f"{size.length:,} tokens through {MODEL}",
        comparison=f"random weights, float32, transformers with sdpa, all 30 layers and 270 heads. CPU time, best of "
        f"{size.rounds} in turns; peak memory in processes of their own, above the plain pass. Bounds at 8,192 tokens: "
        + ", ".join(f"{mode} {times:g}x and {format_bytes(rise)}" for mode, (times, rise) in BOUNDS.items())
        + ".",
        columns=("kept", "CPU time", "ratio", "peak memory", "above plain", "bounds kept"),
    )
    for mode in MODES:
        ratio, above = seconds[mode] / seconds["plain"], rises[mode] - rises["plain"]
        cells = (mode, duration(seconds[mode]), f"{ratio:.2f}x", format_bytes(rises[mode]), format_bytes(max(above, 0)))
        if mode in BOUNDS and size.length == BOUND_LENGTH:
            table.add(*cells, met=keeps(ratio, above, mode))
        else:
            table.add(*cells, "")
    return table


def keeps(ratio: float, above: float, mode: str) -> bool:
    """Whether a mode costs no more than it may."""
    times, rise = BOUNDS[mode]
    return ratio <= times and above <= rise
