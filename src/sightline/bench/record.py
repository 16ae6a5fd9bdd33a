"""What recording and scoring cost: a pass through SmolLM2 with everything recorded, beside the plain pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from sightline.attention.plan import size_text
from sightline.bench.generate import transformers_model
from sightline.bench.memory import Cost, cost
from sightline.bench.report import Table, duration
from sightline.heads import score_heads
from sightline.models import Decoder, save
from sightline.models.sizes import DECODERS
from sightline.record import record

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


SIZES = {"small": 512, "full": BOUND_LENGTH}
"""Tokens."""


def tables(size: str, step: Callable[[str], None]) -> Iterator[Table]:
    """Time and memory of every mode, in one table."""
    length = SIZES[size]
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        step("drawing weights")
        save(Decoder(DECODERS[MODEL]), folder)
        ids = torch.randint(DECODERS[MODEL].vocab_size, (1, length))
        found = {}
        for mode in MODES:
            step(mode)
            found[mode] = cost(prepared, folder, ids, mode)
    yield costs(length, found)


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


def costs(length: int, found: Mapping[str, Cost]) -> Table:
    """Each mode beside the plain pass."""
    table = Table(
        title=f"{length:,} tokens through {MODEL}",
        comparison="random weights, float32, transformers with sdpa, all 30 layers and 270 heads, each in a process of "
        "its own: CPU time, and peak memory above the plain pass. Bounds at 8,192 tokens: "
        + ", ".join(f"{mode} {times:g}x and {size_text(rise)}" for mode, (times, rise) in BOUNDS.items())
        + ".",
        columns=("kept", "CPU time", "ratio", "peak memory", "above plain", "bounds kept"),
    )
    for mode in MODES:
        peak, seconds = found[mode]
        ratio, above = seconds / found["plain"].processor_seconds, peak - found["plain"].extra_bytes
        cells = (mode, duration(seconds), f"{ratio:.2f}x", size_text(peak), size_text(max(above, 0)))
        if mode in BOUNDS and length == BOUND_LENGTH:
            table.add(*cells, met=keeps(ratio, above, mode))
        else:
            table.add(*cells, "")
    return table


def keeps(ratio: float, above: float, mode: str) -> bool:
    """Whether a mode costs no more than it may."""
    times, rise = BOUNDS[mode]
    return ratio <= times and above <= rise
