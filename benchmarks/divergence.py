"""Does telemetry warn early? Small GPTs that diverge and healthy ones: alerts, gradient norms and loss spikes.

A run diverges if its loss rises by SPIKE above the lowest loss so far, smoothed over SMOOTHING steps. Both signals are
judged by the steps between them and that spike, and by how many healthy runs they fire in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.bench import Size
from attnscope.bench.report import Table
from attnscope.models import Decoder, DecoderConfig
from attnscope.telemetry import Watch

CONFIG = DecoderConfig(
    vocab_size=256,
    max_position_embeddings=64,
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    intermediate_size=256,
    tie_word_embeddings=True,
)
BATCH = 8
RATE, WARM_UP = 3e-3, 50
GROWTH, GROWTH_START = 100.0, 200
"""In diverging runs, the learning rate grows exponentially from a step on, by this factor up to the last step."""
EVERY = 5
SPIKE, SMOOTHING = 0.5, 10
GRADIENT_FACTOR, GRADIENT_STEPS = 10.0, 50
"""The gradient norm warns if it is this much larger than the median of the steps before."""
CLIP = 50.0
FIRST_SEED = 1000


@dataclass
class Run:
    """What happened in a run."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    alerts: dict[str, int] = field(default_factory=dict)
    """The first step of each rule that raised an alert."""
    max_logit: float = 0.0

    @property
    def spike(self) -> int | None:
        """The step at which the run diverges, if it does."""
        lowest = math.inf
        for step in range(SMOOTHING, len(self.losses) + 1):
            mean = sum(self.losses[step - SMOOTHING : step]) / SMOOTHING
            if not mean <= lowest + SPIKE:
                return step
            lowest = min(lowest, mean)
        return None

    @property
    def large_gradient(self) -> int | None:
        """The first step with a gradient norm far above those before it."""
        for step in range(SMOOTHING, len(self.norms)):
            before = self.norms[max(step - GRADIENT_STEPS, 0) : step]
            if not self.norms[step] <= GRADIENT_FACTOR * median(before):
                return step + 1
        return None

    @property
    def alert(self) -> int | None:
        """The step of the first alert."""
        return min(self.alerts.values(), default=None)


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Train all runs; yield the table of warnings."""
    seeds, steps = size.choose(small=(1, 300), full=(10, 600))
    data = corpus()
    runs: dict[str, list[Run]] = {}
    for kind, growth, clip in (
        ("with a growing rate", GROWTH, None),
        ("healthy", 1.0, None),
        ("with a growing rate, clipped", GROWTH, CLIP),
    ):
        runs[kind] = []
        for seed in range(seeds):  # not those on which the settings were chosen
            step(f"{kind}, run {seed + 1} of {seeds}")
            runs[kind].append(train(data, FIRST_SEED + seed, steps, growth, clip))
    yield to_table(runs, steps)


def corpus() -> Tensor:
    """Bytes of the documentation of torch, which every installation has."""
    texts = [getattr(torch.nn, name).__doc__ or "" for name in sorted(dir(torch.nn)) if name[0].isupper()]
    return torch.frombuffer(bytearray("\n".join(texts).encode("utf-8")), dtype=torch.uint8).long()


def train(data: Tensor, seed: int, steps: int, growth: float, clip: float | None) -> Run:
    """Train a model for some steps with AdamW, without gradient clipping and QK norm."""
    torch.manual_seed(seed)
    model = Decoder(CONFIG).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    length = CONFIG.max_position_embeddings
    run = Run()
    with Watch(model, every=EVERY) as watch:
        if clip is not None:
            watch.clip(clip)
        for number in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(number, steps, growth)
            starts = torch.randint(len(data) - length - 1, (BATCH,))
            rows = torch.stack([data[start : start + length + 1] for start in starts.tolist()])
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
            run.losses.append(loss.item())
            run.norms.append(norm.item())
            report = watch.step()
            if report is not None:
                run.max_logit = max(run.max_logit, float(report.statistics.max_logit.max()))
                for alert in report.alerts:
                    run.alerts.setdefault(alert.rule, alert.step)
            if not math.isfinite(run.losses[-1]):
                break
    return run


def rate_at(step: int, steps: int, growth: float) -> float:
    """The learning rate of a step: warm-up, then constant, then exponential growth."""
    grown = max(step - GROWTH_START, 0) / (steps - GROWTH_START)
    return RATE * min(1, (step + 1) / WARM_UP) * growth**grown


def to_table(runs: dict[str, list[Run]], steps: int) -> Table:
    """Return the table of warnings and spikes."""
    table = Table(
        title=f"Warnings before a loss spike, {steps} steps",
        comparison=f"GPT of {CONFIG.num_layers} layers, {CONFIG.num_heads} heads, width {CONFIG.hidden_size}, float32, "
        f"bytes of the documentation of torch, AdamW at {RATE:g} after {WARM_UP} steps of warm-up; a growing rate "
        f"becomes {GROWTH:g} times as large from step {GROWTH_START} to {steps}; no gradient clipping, every={EVERY}. "
        f"Spike: {SPIKE:g} above the lowest loss, means of {SMOOTHING} steps. Gradient norm: {GRADIENT_FACTOR:g} times "
        f"the median of {GRADIENT_STEPS} steps. Clipped at {CLIP:g}. Steps are medians over runs.",
        columns=(
            "runs",
            "with spike",
            "step of spike",
            "alert: runs",
            "steps before spike",
            "alert first",
            "gradient norm: runs",
            "steps before spike",
            "largest logit",
            "last loss",
        ),
    )
    for kind, group in runs.items():
        spiked = [run for run in group if run.spike is not None]
        table.add(
            f"{len(group)} {kind}",
            str(len(spiked)),
            _median([run.spike for run in spiked]),
            str(sum(run.alert is not None for run in group)),
            _median([run.spike - run.alert for run in spiked if run.spike is not None and run.alert is not None]),
            f"{sum(_is_before(run.alert, run.spike) for run in spiked)} of {len(spiked)}",
            str(sum(run.large_gradient is not None for run in group)),
            _median(
                [
                    run.spike - run.large_gradient
                    for run in spiked
                    if run.spike is not None and run.large_gradient is not None
                ]
            ),
            f"{median(run.max_logit for run in group):.0f}",
            f"{median(run.losses[-1] for run in group):.2f}",
        )
    return table


def _is_before(first: int | None, second: int | None) -> bool:
    return first is not None and second is not None and first < second


def _median(values: list[int] | list[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):g}" if known else "-"
