"""What generating costs: beside transformers' own `generate`, and beside the time it takes to read the weights once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race
from attnscope.extras import import_extra
from attnscope.models import Decoder, generate_tokens, load, save
from attnscope.models.published_configs import DECODERS

READ_BYTES = 2**29  # more than any cache of a processor holds


@dataclass(frozen=True, kw_only=True)
class Size:
    """How far each measurement goes."""

    model: str
    rounds: int
    prompt: int
    steps: int
    batches: tuple[int, ...]


SIZES = {
    "small": Size(model="smollm2-135m", rounds=1, prompt=256, steps=16, batches=(1,)),
    "full": Size(model="smollm2-135m", rounds=2, prompt=2048, steps=128, batches=(1, 8)),
}


def tables(size: str, step: Callable[[str], None]) -> Iterator[Table]:
    """All measurements, one table each."""
    chosen = SIZES[size]
    torch.manual_seed(0)
    with TemporaryDirectory() as folder, torch.no_grad():
        step("drawing weights")
        save(Decoder(DECODERS[chosen.model]), folder)
        step("reading memory")
        bandwidth = read_bandwidth()
        found = {dtype: rows(Path(folder), dtype, chosen, step) for dtype in (torch.float32, torch.bfloat16)}
    yield prompts(chosen, found)
    yield steps(chosen, found, bandwidth)


def rows(
    folder: Path, dtype: torch.dtype, size: Size, step: Callable[[str], None]
) -> list[tuple[str, int, int, dict[str, float]]]:
    """(what, batch, bytes of the weights, best times) of every measurement in one dtype."""
    ours, theirs = load(folder, dtype=dtype), transformers_model(folder, dtype)
    assert isinstance(ours, Decoder)
    weights = sum(parameter.nbytes for parameter in ours.parameters())
    found = []
    for batch in size.batches:
        for what, length, count in (("prompt", size.prompt, 1), ("steps", 16, size.steps)):
            step(f"{what}, {dtype}, batch {batch}")
            tokens = torch.randint(ours.config.vocab_size, (batch, length))
            found.append((what, batch, weights, race(contestants(ours, theirs, tokens, count), size.rounds)))
    return found


def contestants(ours: Decoder, theirs: Any, tokens: torch.Tensor, count: int) -> dict[str, Callable[[], object]]:
    """The same greedy generation by transformers and by us; no token ends it."""
    rows_of_ids, everything = tokens.tolist(), torch.ones_like(tokens)
    options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    return {
        "transformers": lambda: theirs.generate(tokens, attention_mask=everything, **options),
        "attnscope": lambda: list(generate_tokens(ours, rows_of_ids, max_new_tokens=count)),
    }


def prompts(size: Size, found: dict[torch.dtype, list]) -> Table:
    """Reading a prompt and writing one token."""
    table = Table(
        title=f"a prompt of {size.prompt:,} tokens",
        comparison=f"{size.model} with random weights, greedy, one new token, best of {size.rounds} in turns, beside "
        f"`generate` of transformers {import_extra('transformers').__version__} with sdpa. Bound: no slower.",
        columns=("dtype", "batch", "transformers", "attnscope", "ratio", "bound kept"),
    )
    for dtype, batch, _, best in _of("prompt", found):
        ratio = best["attnscope"] / best["transformers"]
        table.add(
            dtype,
            str(batch),
            duration(best["transformers"]),
            duration(best["attnscope"]),
            f"{ratio:.2f}x",
            met=ratio <= 1,
        )
    return table


def steps(size: Size, found: dict[torch.dtype, list], bandwidth: float) -> Table:
    """Writing many tokens after a short prompt."""
    table = Table(
        title=f"{size.steps} tokens, one after the other",
        comparison=f"{size.model} with random weights, greedy, after a prompt of 16 tokens, best of {size.rounds} in "
        f"turns; time a step. The limit is the time to read all weights once, at the {bandwidth / 1e9:.1f} GB/s "
        "measured in the same run. Bound: no slower than transformers.",
        columns=("dtype", "batch", "transformers", "attnscope", "limit", "share of the limit", "ratio", "bound kept"),
    )
    for dtype, batch, weights, best in _of("steps", found):
        theirs, ours, limit = best["transformers"] / size.steps, best["attnscope"] / size.steps, weights / bandwidth
        cells = (duration(theirs), duration(ours), duration(limit), f"{limit / ours:.0%}", f"{ours / theirs:.2f}x")
        table.add(dtype, str(batch), *cells, met=ours <= theirs)
    return table


def _of(what: str, found: dict[torch.dtype, list]) -> Iterator[tuple[str, int, int, dict[str, float]]]:
    for dtype, measured in found.items():
        for kind, batch, weights, best in measured:
            if kind == what:
                yield str(dtype).removeprefix("torch."), batch, weights, best


def read_bandwidth() -> float:
    """Bytes a second that this machine reads from memory with all threads, by the better of two ways to read."""
    matrix = torch.ones(READ_BYTES // 4 // 1024, 1024)
    vector = torch.ones(1024)
    best = race({"sum": lambda: matrix.sum(), "product": lambda: matrix @ vector}, rounds=10)
    return READ_BYTES / min(best.values())


def transformers_model(folder: Path, dtype: torch.dtype) -> Any:
    """The same weights as transformers runs them."""
    auto = import_extra("transformers").AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True).eval()
    model.generation_config.eos_token_id = None
    return model
