"""The cost of recording and scoring: recorded forward passes and generation of SmolLM2, compared with plain ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from attnscope.bench import Size
from attnscope.bench.memory import peak_extra_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race
from attnscope.extras import import_extra
from attnscope.formatting import format_bytes
from attnscope.heads import score_heads
from attnscope.models import Decoder, save
from attnscope.models.published_configs import DECODERS
from attnscope.recording import record

MODEL = "smollm2-135m"

MODES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "matrix": {},
    "matrix in bfloat16": {"dtype": torch.bfloat16},
    "statistics": {"keep": "statistics"},
    "matrix, heads scored": {},
}
"""The options of `record` in each mode; None runs without a recorder."""

BOUND_LENGTH = 8192
BOUNDS = {
    "matrix": (1.10, 1.0e9),
    "matrix in bfloat16": (1.10, 0.5e9),
    "statistics": (3.0, 0.5e9),
    "matrix, heads scored": (5.0, 1.2e9),
}
"""The largest time as a multiple of the plain pass, and the largest extra bytes, at that length."""

GENERATION_BOUND = 1.5
"""The largest time of recorded generation, as a multiple of plain generation."""


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Measure time and memory of every mode, and the time of generation; yield two tables."""
    length = size.choose(small=512, full=BOUND_LENGTH)
    rounds, new_tokens = size.choose(small=(1, 16), full=(5, 100))
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        step("initializing parameters")
        save(Decoder(DECODERS[MODEL]), folder)
        ids = torch.randint(DECODERS[MODEL].vocab_size, (1, length))
        step("time")
        model = transformers_model(Path(folder), torch.float32)
        seconds = race(calls_by_mode(model, ids), rounds=1, clock=time.process_time)
        step("generation")
        generation = race(generation_calls(model, ids[:, :16], new_tokens), rounds, clock=time.process_time)
        del model
        peaks = {}
        for mode in MODES:
            step(f"memory, {mode}")
            peaks[mode] = peak_extra_bytes(prepare_run, folder, ids, mode)
    yield costs(length, seconds, peaks)
    yield generation_costs(new_tokens, rounds, generation)


def calls_by_mode(model: Any, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return the same forward pass in every mode."""
    return {mode: lambda mode=mode: run(model, ids, mode) for mode in MODES}


def generation_calls(model: Any, ids: torch.Tensor, new_tokens: int) -> dict[str, Callable[[], object]]:
    """Return the same greedy generation with a KV cache, plain and recorded."""
    options = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}

    def generate() -> object:
        with torch.no_grad():
            return model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    def generate_recorded() -> object:
        with record(model) as trace:
            generate()
        return trace

    return {"plain": generate, "recorded": generate_recorded}


def run(model: Any, ids: torch.Tensor, mode: str) -> object:
    """Run one forward pass without a KV cache, recorded and scored as the mode says."""
    options = MODES[mode]
    with torch.no_grad():
        if options is None:
            return model(ids, use_cache=False, logits_to_keep=1)
        with record(model, **options) as trace:
            model(ids, use_cache=False, logits_to_keep=1)
        return (trace, score_heads(trace, progress=False)) if mode.endswith("scored") else trace


def prepare_run(folder: str, ids: torch.Tensor, mode: str) -> Callable[[], object]:
    """Return a forward pass that is ready to run; a short one has warmed up torch."""
    model = transformers_model(Path(folder), torch.float32)
    run(model, ids[:, :64], mode)
    return lambda: run(model, ids, mode)


def costs(length: int, seconds: dict[str, float], peaks: dict[str, int]) -> Table:
    """Return the table that compares each mode with the plain pass."""
    table = Table(
        title=f"{length:,} tokens through {MODEL}",
        comparison="random parameters, float32, transformers with sdpa, all 30 layers and 270 heads. CPU time of one "
        "run after a warm-up; peak memory in separate processes, above the plain pass. Bounds at 8,192 tokens: "
        + ", ".join(f"{mode} {times:g}x and {format_bytes(extra)}" for mode, (times, extra) in BOUNDS.items())
        + ".",
        columns=("kept", "CPU time", "ratio", "peak memory", "above plain", "bounds kept"),
    )
    for mode in MODES:
        ratio, above = seconds[mode] / seconds["plain"], peaks[mode] - peaks["plain"]
        cells = (mode, duration(seconds[mode]), f"{ratio:.2f}x", format_bytes(peaks[mode]), format_bytes(max(above, 0)))
        if mode in BOUNDS and length == BOUND_LENGTH:
            table.add(*cells, met=is_within_bounds(ratio, above, mode))
        else:
            table.add(*cells, "")
    return table


def generation_costs(new_tokens: int, rounds: int, seconds: dict[str, float]) -> Table:
    """Return the table that compares recorded with plain generation."""
    table = Table(
        title=f"{new_tokens} tokens generated by {MODEL}",
        comparison="random parameters, float32, transformers with sdpa, greedy, with a KV cache, after 16 tokens, all "
        f"layers and heads recorded. CPU time per token, best of {rounds} alternating runs. "
        f"Bound: {GENERATION_BOUND:g}x.",
        columns=("generation", "CPU time", "ratio", "bound kept"),
    )
    ratio = seconds["recorded"] / seconds["plain"]
    table.add("plain", duration(seconds["plain"] / new_tokens), "1.00x", "")
    recorded = duration(seconds["recorded"] / new_tokens)
    table.add("recorded", recorded, f"{ratio:.2f}x", met=ratio <= GENERATION_BOUND)
    return table


def is_within_bounds(ratio: float, above: float, mode: str) -> bool:
    """Return whether time and memory of a mode are within its bounds."""
    times, extra = BOUNDS[mode]
    return ratio <= times and above <= extra


def transformers_model(folder: Path, dtype: torch.dtype) -> Any:
    """Load a checkpoint folder with transformers."""
    auto = import_extra("transformers").AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True).eval()
    model.generation_config.eos_token_id = None
    return model
