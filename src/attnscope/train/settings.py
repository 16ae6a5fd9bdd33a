"""What a run is told: how many steps, how fast to learn, what to do how often, and over how many ranks.

In: numbers. Out: `Settings`, checked, and `learning_rate`, the one formula among them.
Does not know: models, data, files. Memory: O(1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.errors import SettingError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run. Every N is in steps; 0 means never."""

    steps: int
    """How many times the weights are changed."""
    batch: int
    """Rows of a step, over all ranks and accumulated parts together."""
    length: int
    """Tokens of a row."""
    learning_rate: float
    """The highest one, after the warm-up."""
    warm_up: int = 100
    """Steps in which the learning rate rises from 0."""
    least_rate: float = 0.1
    """The share of the learning rate that is left at the end of the cosine."""
    weight_decay: float = 0.1
    """Pulls matrices towards zero; vectors (norms, biases) are left alone."""
    betas: tuple[float, float] = (0.9, 0.95)
    """How long AdamW remembers gradients, and their squares."""
    clip: float = 1.0
    """Gradients longer than this are shortened to it; 0 leaves them."""
    accumulate: int = 1
    """In how many parts a step's batch goes through the model, one after the other."""
    bf16: bool = False
    """Whether matrix products run in bfloat16 (autocast); weights and their updates stay in float32."""
    compile: bool = False
    """Whether torch.compile is used."""
    seed: int = 0
    """Of the first weights, the order of samples, and dropout."""
    log_every: int = 10
    evaluate_every: int = 250
    evaluate_rows: int = 256
    """Rows of the validation data that each evaluation reads, always the same ones."""
    sample_every: int = 0
    checkpoint_every: int = 250
    keep: int = 2
    """How many checkpoints are kept; older ones are removed."""
    heads_every: int = 0
    """How often every head is scored, for `attnscope heads --over-training`."""
    tensor: int = 1
    """Ranks that share the heads and the feed-forward network of each layer."""
    context: int = 1
    """Ranks that share the positions of each row."""

    def __post_init__(self):
        for name in (
            "steps",
            "batch",
            "length",
            "accumulate",
            "log_every",
            "evaluate_rows",
            "keep",
            "tensor",
            "context",
        ):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "warm_up",
            "evaluate_every",
            "sample_every",
            "checkpoint_every",
            "heads_every",
            "weight_decay",
            "clip",
        ):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        self._check("learning_rate", 0 < self.learning_rate < math.inf, "above 0")
        self._check("least_rate", 0 <= self.least_rate <= 1, "a share from 0 to 1")
        self._check(
            "length", self.length >= 2 * self.context or self.context == 1, f"at least twice context, {self.context}"
        )
        self._check("batch", self.batch % self.accumulate == 0, f"a multiple of accumulate, which is {self.accumulate}")

    def _check(self, name: str, is_right: bool, wanted: str) -> None:
        if not is_right:
            raise SettingError(f"Settings.{name} must be {wanted}, but is {getattr(self, name)}")


def learning_rate(settings: Settings, step: int) -> float:
    """The rate of a step, counted from 0: a straight line up, then half a cosine down.

    >>> settings = Settings(steps=100, batch=1, length=1, learning_rate=1.0, warm_up=4)
    >>> [round(learning_rate(settings, step), 2) for step in (0, 3, 52, 100)]
    [0.25, 1.0, 0.55, 0.1]
    """
    if step < settings.warm_up:
        return settings.learning_rate * (step + 1) / settings.warm_up
    done = min((step - settings.warm_up) / max(settings.steps - settings.warm_up, 1), 1.0)
    share = settings.least_rate + (1 - settings.least_rate) * 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * share


def is_due(every: int, step: int, steps: int) -> bool:
    """Whether something that happens every so often happens after so many steps; before the first and after the last
    it always does.

    >>> [step for step in range(9) if is_due(3, step, 8)]
    [0, 3, 6, 8]
    """
    return every > 0 and (step % every == 0 or step == steps)
