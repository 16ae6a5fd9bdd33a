"""Time and memory of every way at every length, until it stops.

In: who is measured, how far, and a bench to measure on. Out: outcomes, and tables and drawings of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.attention.plan import format_bytes
from attnscope.bench.report import Table, duration
from attnscope.figures import lines
from benchmarks.peers import inside
from benchmarks.peers.peers import PLAIN, RECORD, Peer, Way
from benchmarks.peers.points import Outcome, run_capped

SCRIPT = Path(str(inside.__file__)).parent / "cost.py"
LIMIT = 3600.0  # seconds for one point
ROUNDS, ROUND_TOKENS = 3, 4096  # at most so many rounds, and no more than so many tokens in all, or one round
AGREES = 1e-3  # nats between entropies of the same row: kernels round differently

Outcomes = Mapping[tuple[Way, int], Outcome]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What every point is measured with."""

    model: Path
    text: Path
    """Ids and texts of tokens, as JSON."""
    memory: float
    pythons: Mapping[Peer, Path]
    """The Python of each peer that could be installed."""

    def environment(self) -> dict[str, str]:
        """Variables for a peer: no hub, since the model is here, and no telemetry."""
        return os.environ | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}


def rounds_for(length: int) -> int:
    """How often a length is measured; the best counts.

    >>> [rounds_for(length) for length in (64, 1024, 2048, 8192)]
    [3, 3, 2, 1]
    """
    return max(1, min(ROUNDS, ROUND_TOKENS // length))


def measure(
    ways: Sequence[Way], lengths: Sequence[int], bench: Bench, step: Callable[[str], None]
) -> dict[tuple[Way, int], Outcome]:
    """Every way at every length, from short to long; one that has stopped is not asked again."""
    found = {}
    for way in ways:
        if way.peer not in bench.pythons:
            continue
        for length in lengths:
            step(f"{way.title}, {length:,} tokens")
            command = [bench.pythons[way.peer], SCRIPT, way.script, bench.model, bench.text, length, rounds_for(length)]
            outcome = run_capped(
                [*map(str, command)], memory=bench.memory, seconds=LIMIT, environment=bench.environment()
            )
            found[way, length] = outcome
            if outcome.stopped:
                break
    return found


def times(outcomes: Outcomes, lengths: Sequence[int], about: str) -> Table:
    """CPU time beside the plain pass, and wall time."""
    table = Table(
        title="time",
        comparison=f"{about} CPU time of one pass beside the plain sdpa pass in the same process, then its wall time; "
        f"best of up to {ROUNDS} in turns, each length in a process of its own.",
        columns=("way", *(f"n = {length:,}" for length in lengths)),
        drawing=lambda: drawn(outcomes, lengths, ratio, "CPU time / plain pass"),
    )
    _fill(table, outcomes, lengths, lambda answer: f"{ratio(answer):.2f}x, {duration(answer['way']['wall'])}")
    return table


def memories(outcomes: Outcomes, lengths: Sequence[int], about: str, memory: float) -> Table:
    """Peak memory above the loaded models, and whether the weights are the same ones."""
    table = Table(
        title="memory",
        comparison=f"{about} Peak of the process above what it held before the pass, with the models loaded and "
        f"after a small pass. A process that held more than {format_bytes(memory)} was ended: out of memory.",
        columns=("way", *(f"n = {length:,}" for length in lengths), "same weights"),
        drawing=lambda: drawn(outcomes, lengths, lambda answer: max(answer["rise"], 1) / 1e6, "peak memory, MB"),
    )
    _fill(table, outcomes, lengths, lambda answer: format_bytes(answer["rise"]), lambda way: agreement(way, outcomes))
    return table


def _fill(
    table: Table,
    outcomes: Outcomes,
    lengths: Sequence[int],
    cell: Callable[[dict[str, Any]], str],
    *more: Callable[[Way], str],
) -> None:
    for way in dict.fromkeys(way for way, _ in outcomes):
        cells = []
        for length in lengths:
            outcome = outcomes.get((way, length))
            answer = None if outcome is None else outcome.answer
            cells.append("not tried" if outcome is None else outcome.stopped if answer is None else cell(answer))
        table.add(way.title, *cells, *(each(way) for each in more))


def ratio(answer: Mapping[str, Any]) -> float:
    """CPU time beside the plain pass."""
    return answer["way"]["cpu"] / answer["plain"]["cpu"]


def agreement(way: Way, outcomes: Outcomes) -> str:
    """Whether the last row has the entropy of the one that `record` has, at all lengths that both reached."""
    ours, theirs = (
        {
            length: found.answer["entropy"]
            for (other, length), found in outcomes.items()
            if other == who and found.answer
        }
        for who in (RECORD, way)
    )
    both = [(ours[length], theirs[length]) for length in ours.keys() & theirs.keys()]
    gaps = [abs(our - their) for our, their in both if their is not None]
    if way == RECORD or not gaps:
        return ""
    return "yes" if max(gaps) <= AGREES else f"no: {max(gaps):.2g} nats apart"


def drawn(outcomes: Outcomes, lengths: Sequence[int], number: Callable[[Mapping[str, Any]], float], name: str) -> Any:
    """One curve a way over the lengths; it ends where the way stops."""
    curves = {}
    for way in dict.fromkeys(way for way, _ in outcomes if way != PLAIN):
        answers = [outcomes[way, length].answer if (way, length) in outcomes else None for length in lengths]
        values = [math.nan if answer is None else number(answer) for answer in answers]
        if not all(map(math.isnan, values)):
            curves[way.title] = values
    return lines(lengths, curves, xlabel="tokens", ylabel=name, log_x=True, log_y=True)
