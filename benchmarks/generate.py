"""The cost of generation: compared with `generate` of transformers, and with the memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from attnscope.bench import Size
from attnscope.bench.record import transformers_model
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race
from attnscope.extras import import_extra
from attnscope.models import Decoder, generate_tokens, load, save
from attnscope.models.published_configs import DECODERS

MODEL = "smollm2-135m"
READ_BYTES = 2**29  # larger than any CPU cache


class Measured(NamedTuple):
    """The best times of both libraries in one setting."""

    phase: str
    """"prefill" or "decoding"."""
    dtype: str
    batch: int
    parameter_bytes: int
    seconds: dict[str, float]


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    rounds, prompt, new_tokens = size.choose(small=(1, 256, 16), full=(2, 2048, 128))
    batches = size.choose(small=(1,), full=(1, 8))
    torch.manual_seed(0)
    with TemporaryDirectory() as folder, torch.no_grad():
        step("initializing parameters")
        save(Decoder(DECODERS[MODEL]), folder)
        step("memory bandwidth")
        bandwidth = read_bandwidth()
        measured = [
            one
            for dtype in (torch.float32, torch.bfloat16)
            for one in measure(Path(folder), dtype, batches, prompt, new_tokens, rounds, step)
        ]
    yield prefill_table([one for one in measured if one.phase == "prefill"], prompt, rounds)
    yield decoding_table([one for one in measured if one.phase == "decoding"], new_tokens, rounds, bandwidth)


def measure(
    folder: Path,
    dtype: torch.dtype,
    batches: Sequence[int],
    prompt: int,
    new_tokens: int,
    rounds: int,
    step: Callable[[str], None],
) -> Iterator[Measured]:
    """Measure prefill and decoding in one dtype."""
    ours, theirs = load(folder, dtype=dtype), transformers_model(folder, dtype)
    assert isinstance(ours, Decoder)
    parameter_bytes = sum(parameter.nbytes for parameter in ours.parameters())
    name = str(dtype).removeprefix("torch.")
    for batch in batches:
        for phase, length, count in (("prefill", prompt, 1), ("decoding", 16, new_tokens)):
            step(f"{phase}, {name}, batch {batch}")
            tokens = torch.randint(ours.config.vocab_size, (batch, length))
            best = race(calls_by_library(ours, theirs, tokens, count), rounds)
            yield Measured(phase, name, batch, parameter_bytes, best)


def calls_by_library(ours: Decoder, theirs: Any, tokens: torch.Tensor, count: int) -> dict[str, Callable[[], object]]:
    """Return the same greedy generation by transformers and by AttnScope, without a stop token."""
    prompts, everything = tokens.tolist(), torch.ones_like(tokens)
    options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    return {
        "transformers": lambda: theirs.generate(tokens, attention_mask=everything, **options),
        "attnscope": lambda: list(generate_tokens(ours, prompts, max_new_tokens=count)),
    }


def prefill_table(measured: Sequence[Measured], prompt: int, rounds: int) -> Table:
    """Return the table for prefill and one new token."""
    table = Table(
        title=f"a prompt of {prompt:,} tokens",
        comparison=f"{MODEL} with random parameters, greedy, one new token, best of {rounds} alternating runs, "
        "compared "
        f"with `generate` of transformers {import_extra('transformers').__version__} with sdpa. Bound: not slower.",
        columns=("dtype", "batch", "transformers", "attnscope", "ratio", "bound kept"),
    )
    for one in measured:
        theirs, ours = one.seconds["transformers"], one.seconds["attnscope"]
        cells = (one.dtype, str(one.batch), duration(theirs), duration(ours), f"{ours / theirs:.2f}x")
        table.add(*cells, met=ours <= theirs)
    return table


def decoding_table(measured: Sequence[Measured], new_tokens: int, rounds: int, bandwidth: float) -> Table:
    """Return the table for many decoding steps after a short prompt."""
    table = Table(
        title=f"{new_tokens} decoding steps",
        comparison=f"{MODEL} with random parameters, greedy, after a prompt of 16 tokens, best of {rounds} alternating "
        f"runs; time per step. The limit is the time to read all parameters once, at the {bandwidth / 1e9:.1f} GB/s "
        "measured in the same run. Bound: not slower than transformers.",
        columns=("dtype", "batch", "transformers", "attnscope", "limit", "share of the limit", "ratio", "bound kept"),
    )
    for one in measured:
        theirs, ours = (one.seconds[library] / new_tokens for library in ("transformers", "attnscope"))
        limit = one.parameter_bytes / bandwidth
        cells = (duration(theirs), duration(ours), duration(limit), f"{limit / ours:.0%}", f"{ours / theirs:.2f}x")
        table.add(one.dtype, str(one.batch), *cells, met=ours <= theirs)
    return table


def read_bandwidth() -> float:
    """Measure the bytes per second that this machine reads from memory with all threads; the better of two methods."""
    matrix = torch.ones(READ_BYTES // 4 // 1024, 1024)
    vector = torch.ones(1024)
    best = race({"sum": lambda: matrix.sum(), "product": lambda: matrix @ vector}, rounds=10)
    return READ_BYTES / min(best.values())
