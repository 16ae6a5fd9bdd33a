"""Measures time and memory of every method at every sequence length, until it fails."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from attnscope.bench.report import Table, duration
from attnscope.figures import lines
from attnscope.formatting import format_bytes
from benchmarks.peers import scripts
from benchmarks.peers.capped_process import Outcome, run_capped
from benchmarks.peers.libraries import ANALYSES, PLAIN, RECORD, Library, Method
from benchmarks.peers.saved_points import SavedPoints

SCRIPT = Path(str(scripts.__file__)).parent / "cost.py"
LIMIT = 3600.0  # seconds for one point
ROUNDS, ROUND_TOKENS = 3, 4096  # at most this many rounds, and this many tokens in all
TOLERANCE = 1e-3  # nats; kernels round differently

Outcomes = Mapping[tuple[Method, int], Outcome]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The settings of all measurements."""

    model: Path
    text: Path
    """Ids and texts of tokens, as JSON."""
    memory: float
    pythons: Mapping[Library, Path]
    """The Python of each peer that could be installed."""
    points: SavedPoints = field(default_factory=SavedPoints)

    def environment(self) -> dict[str, str]:
        """Variables for a library: no hub, since the model is here, and no telemetry."""
        return os.environ | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}


def rounds_for(length: int) -> int:
    """Return how often a length is measured; the best counts.

    >>> [rounds_for(length) for length in (64, 1024, 2048, 8192)]
    [3, 3, 2, 1]
    """
    return max(1, min(ROUNDS, ROUND_TOKENS // length))


def measure(
    methods: Sequence[Method], lengths: Sequence[int], bench: Bench, step: Callable[[str], None]
) -> dict[tuple[Method, int], Outcome]:
    """Measure every method at every length, from short to long, until it fails."""
    found = {}
    for method in methods:
        if method.library not in bench.pythons:
            continue
        for length in lengths:
            step(f"{method.title}, {length:,} tokens")
            command = [
                bench.pythons[method.library],
                SCRIPT,
                method.script,
                bench.model,
                bench.text,
                length,
                rounds_for(length),
            ]
            (outcome,) = bench.points.get(f"{method.script}-{length}", partial(run, command, bench))
            found[method, length] = outcome
            if outcome.stopped:
                break
    return found


def run(command: Sequence[object], bench: Bench) -> list[Outcome]:
    """Run a script of a library."""
    return [run_capped([*map(str, command)], memory=bench.memory, seconds=LIMIT, environment=bench.environment())]


def times(outcomes: Outcomes, lengths: Sequence[int], about: str) -> Table:
    """Return the table of CPU times relative to the plain pass, and wall times."""
    table = Table(
        title="time",
        comparison=f"{about} CPU time of one pass relative to the plain sdpa pass in the same process, then its wall "
        f"time; best of up to {ROUNDS} alternating runs, each length in a separate process.",
        columns=("method", *(f"n = {length:,}" for length in lengths)),
        drawing=drawing(outcomes, lengths, ratio, "CPU time / plain pass"),
    )
    _fill(table, outcomes, lengths, lambda answer: f"{ratio(answer):.2f}x, {duration(answer['method']['wall'])}")
    return table


def memories(outcomes: Outcomes, lengths: Sequence[int], about: str, memory: float) -> Table:
    """Return the table of peak memory above the loaded models, and whether the weights agree."""
    table = Table(
        title="memory",
        comparison=f"{about} Peak memory of the process above that before the pass, with the models loaded and "
        f"after a small pass. A process that used more than {format_bytes(memory)} was stopped: out of memory.",
        columns=("method", *(f"n = {length:,}" for length in lengths), "same weights"),
        drawing=drawing(outcomes, lengths, lambda answer: max(answer["rise"], 1) / 1e6, "peak memory, MB"),
    )
    _fill(
        table,
        outcomes,
        lengths,
        lambda answer: format_bytes(answer["rise"]),
        lambda method: compare_weights(method, outcomes),
    )
    return table


def _fill(
    table: Table,
    outcomes: Outcomes,
    lengths: Sequence[int],
    cell: Callable[[dict[str, Any]], str],
    *more: Callable[[Method], str],
) -> None:
    for method in dict.fromkeys(method for method, _ in outcomes):
        cells = []
        for length in lengths:
            outcome = outcomes.get((method, length))
            answer = None if outcome is None else outcome.answer
            cells.append("not tried" if outcome is None else outcome.stopped if answer is None else cell(answer))
        table.add(method.title, *cells, *(each(method) for each in more))


def ratio(answer: Mapping[str, Any]) -> float:
    """Return the CPU time relative to the plain pass."""
    return answer["method"]["cpu"] / answer["plain"]["cpu"]


def compare_weights(method: Method, outcomes: Outcomes) -> str:
    """Return whether the entropy of the last row agrees with that of `record`, at all lengths of both."""
    ours, theirs = (
        {
            length: found.answer["entropy"]
            for (other, length), found in outcomes.items()
            if other == who and found.answer
        }
        for who in (RECORD, method)
    )
    both = [(ours[length], theirs[length]) for length in ours.keys() & theirs.keys()]
    gaps = [abs(our - their) for our, their in both if their is not None]
    if method == RECORD or not gaps:
        return ""
    return "yes" if max(gaps) <= TOLERANCE else f"no: {max(gaps):.2g} nats apart"


def drawing(
    outcomes: Outcomes, lengths: Sequence[int], number: Callable[[Mapping[str, Any]], float], name: str
) -> Callable[[], Any] | None:
    """Return what draws a curve per method that gives all weights, over the lengths that it reached."""
    curves = {}
    for method in dict.fromkeys(method for method, _ in outcomes if method not in (PLAIN, *ANALYSES)):
        answers = [outcomes[method, length].answer if (method, length) in outcomes else None for length in lengths]
        values = [math.nan if answer is None else number(answer) for answer in answers]
        if not all(map(math.isnan, values)):
            curves[method.title] = values
    if not curves:
        return None
    return partial(lines, lengths, curves, xlabel="tokens", ylabel=name, log_x=True, log_y=True)
