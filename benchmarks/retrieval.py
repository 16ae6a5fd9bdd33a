"""Retrieval heads of SmolLM2: scores by distance, needles found by length, ablation, and the memory of all of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from attnscope.bench import Size
from attnscope.bench.memory import peak_extra_bytes
from attnscope.bench.report import Table
from attnscope.heads import find_retrieval_heads
from attnscope.heads.retrieval import Retrieval
from attnscope.labs import reference_text
from attnscope.recording import load
from benchmarks.peers import SMOLLM2

MODEL = SMOLLM2[0]
BEST = 5  # heads of each length
FOUND = 3  # heads that a row of the table of lengths names


class Measured(NamedTuple):
    """The rows of each table, as text."""

    distances: list[str]
    heads: list[list[str]]
    lengths: list[list[str]]
    ablation: list[list[str]]


def tables(size: Size, step: Callable[[str], None], model: str | None = None) -> Iterator[Table]:
    """Find retrieval heads once, in a process of its own; yield its tables."""
    length, needles = size.choose(small=(1024, 8), full=(8192, 40))
    place = model or MODEL
    step(f"{needles} needles, up to {length:,} tokens")
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "measured.json")
        peak = peak_extra_bytes(prepare, place, length, needles, file)
        measured = Measured(*json.loads(Path(file).read_text()))
    name = place.rpartition("/")[2]
    yield Table(
        title="retrieval score by distance",
        comparison=f"{name}, float32: {needles} needles in documents of the Python language reference, up to "
        f"{length:,} tokens. The best {BEST} heads of each length; columns are tokens back, over needles of all "
        "lengths. Mean ± standard error over needles.",
        columns=("head", *measured.distances),
        rows=[tuple(row) for row in measured.heads],
    )
    yield Table(
        title="length",
        comparison="Answers that the model predicts as a whole, and the best heads with their retrieval scores.",
        columns=("tokens", "answers found", "best heads"),
        rows=[tuple(row) for row in measured.lengths],
    )
    yield Table(
        title="ablation",
        comparison=f"The loss of the answers at {length:,} tokens, in nats per token. Others are random heads of the "
        "same layers: mean ± standard error over draws, and the largest change of a draw.",
        columns=("heads", "loss or change"),
        rows=[tuple(row) for row in measured.ablation],
    )
    memory = Table(
        title="memory",
        comparison="Peak memory above that of the loaded model, with the KV cache and all ablations.",
        columns=("tokens", "peak memory"),
    )
    memory.add(f"{length:,}", f"{peak / 1e6:,.0f} MB")
    yield memory


def prepare(place: str, length: int, needles: int, file: str) -> Callable[[], object]:
    """Load the model; the function that finds its heads and writes the numbers to a file."""
    torch.set_num_threads(1)
    model, tokenizer = load(place, dtype=torch.float32)
    with torch.no_grad():
        model(torch.arange(64)[None])
    return lambda: Path(file).write_text(json.dumps(measure(model, tokenizer, length, needles)))


def measure(model: Any, tokenizer: Any, length: int, needles: int) -> Measured:
    """Find the heads, and write down what the tables need."""
    found = find_retrieval_heads(model, reference_text(), tokenizer, length=length, needles=needles)
    lengths = found.lengths.unique().tolist()
    best = [found.table(some).top("retrieval", BEST) for some in lengths]
    chosen = {
        name: found.column(layer, head)
        for table in best
        for name, layer, head in zip(table.head_names, table.layers, table.heads, strict=True)
    }
    distances = found.by_distance()
    filled = [at for at, count in enumerate(distances.counts) if count]
    edges = [f"{distances.edges[at]:,.0f} to {distances.edges[at + 1]:,.0f}" for at in filled]
    counts = ["needles", *(f"{distances.counts[at]}" for at in filled)]
    rows = [
        [name, *(f"{distances.means[at, column]:.2f} ± {distances.errors[at, column]:.2f}" for at in filled)]
        for name, column in sorted(chosen.items(), key=lambda item: item[1])
    ]
    return Measured(edges, [counts, *rows], length_rows(found, lengths, best), ablation_rows(found))


def length_rows(found: Retrieval, lengths: Sequence[int], best: Sequence[Any]) -> list[list[str]]:
    """For each length: tokens, answers found, and the best heads."""
    rows = []
    for length, table in zip(lengths, best, strict=True):
        answers = found.found[found.lengths == length]
        names = zip(table.head_names[:FOUND], table["retrieval"].tolist(), strict=False)
        rows.append(
            [
                f"{length:,}",
                f"{int(answers.sum())} of {len(answers)}",
                ", ".join(f"{name} {score:.2f}" for name, score in names),
            ]
        )
    return rows


def ablation_rows(found: Retrieval) -> list[list[str]]:
    """The loss with all heads, without the best and without others."""
    assert found.ablation is not None
    heads, loss, ablated, random = found.ablation
    others = random - loss
    error = float(others.std()) / len(others) ** 0.5
    return [
        ["all heads", f"{loss:.2f}"],
        [f"without {', '.join(heads.head_names)}", f"{ablated - loss:+.2f}"],
        [f"without {len(heads)} others, {len(others)} draws", f"{float(others.mean()):+.2f} ± {error:.2f}"],
        ["the largest change of a draw", f"{float(others.abs().max()):.2f}"],
    ]
