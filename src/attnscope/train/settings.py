"""The settings of a run, and its learning-rate schedule.

In: numbers. Out: `Settings`, which are validated, and `learning_rate`.
Does not know: models, data, files. Memory: O(1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.errors import SettingError

MAX_TIMEOUT_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run. Intervals are in steps; 0 means never.

    Raises:
        SettingError: A value is out of range.
    """

    steps: int
    """The number of optimizer steps."""
    batch_size: int
    """Sequences per step, over all ranks and micro-batches."""
    sequence_length: int
    """Tokens per sequence."""
    learning_rate: float
    """The peak learning rate, after the warm-up."""
    warmup_steps: int = 100
    """Steps of linear warm-up."""
    min_lr_ratio: float = 0.1
    """The final learning rate of the cosine schedule, as a fraction of the peak."""
    weight_decay: float = 0.1
    """Weight decay of matrices; norms and biases have none."""
    betas: tuple[float, float] = (0.9, 0.95)
    """The betas of AdamW."""
    max_grad_norm: float = 1.0
    """The maximum gradient norm; 0 disables clipping."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per step."""
    bf16: bool = False
    """Whether matrix products run in bfloat16 (autocast); parameters and optimizer state stay in float32."""
    compile: bool = False
    """Whether torch.compile is used."""
    seed: int = 0
    """Random seed of the initial parameters, the order of samples, and dropout."""
    log_every: int = 10
    """How often the loss is logged."""
    evaluate_every: int = 250
    """How often the validation loss is computed."""
    evaluate_sequences: int = 256
    """Sequences per validation, always the same ones."""
    sample_every: int = 0
    """How often a sample of text is generated."""
    checkpoint_every: int = 250
    """How often a checkpoint is saved."""
    keep_checkpoints: int = 2
    """The number of checkpoints to keep; older ones are removed."""
    heads_every: int = 0
    """How often every head is scored, for `attnscope heads --over-training`."""
    tensor_parallel_size: int = 1
    """Tensor-parallel ranks, which share the heads and the feed-forward network of each layer."""
    context_parallel_size: int = 1
    """Context-parallel ranks, which share the positions of each sequence."""
    start_timeout_seconds: float = 600.0
    """How long a rank waits for the others until the first step is done, and between steps (checkpoints, samples)."""
    step_timeout_seconds: float = 100.0
    """How long a rank waits for the others within a step; after that, a rank has hung, and the run ends."""

    def __post_init__(self):
        for name in (
            "steps",
            "batch_size",
            "sequence_length",
            "gradient_accumulation_steps",
            "log_every",
            "evaluate_sequences",
            "keep_checkpoints",
            "tensor_parallel_size",
            "context_parallel_size",
        ):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "warmup_steps",
            "evaluate_every",
            "sample_every",
            "checkpoint_every",
            "heads_every",
            "weight_decay",
            "max_grad_norm",
        ):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        for name in ("start_timeout_seconds", "step_timeout_seconds"):
            self._check(
                name, 0 < getattr(self, name) <= MAX_TIMEOUT_SECONDS, f"above 0 and at most {MAX_TIMEOUT_SECONDS}"
            )
        self._check("learning_rate", 0 < self.learning_rate < math.inf, "above 0")
        self._check("min_lr_ratio", 0 <= self.min_lr_ratio <= 1, "between 0 and 1")
        self._check(
            "sequence_length",
            self.sequence_length >= 2 * self.context_parallel_size or self.context_parallel_size == 1,
            f"at least twice context_parallel_size, {self.context_parallel_size}",
        )
        self._check(
            "batch_size",
            self.batch_size % self.gradient_accumulation_steps == 0,
            f"a multiple of gradient_accumulation_steps, which is {self.gradient_accumulation_steps}",
        )

    def _check(self, name: str, is_right: bool, wanted: str) -> None:
        if not is_right:
            raise SettingError(f"Settings.{name} must be {wanted}, got {getattr(self, name)}")


def learning_rate(settings: Settings, step: int) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up, then cosine decay.

    >>> settings = Settings(steps=100, batch_size=1, sequence_length=1, learning_rate=1.0, warmup_steps=4)
    >>> [round(learning_rate(settings, step), 2) for step in (0, 3, 52, 100)]
    [0.25, 1.0, 0.55, 0.1]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = min((step - settings.warmup_steps) / max(settings.steps - settings.warmup_steps, 1), 1.0)
    ratio = settings.min_lr_ratio + (1 - settings.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * ratio


def is_due(every: int, step: int, steps: int) -> bool:
    """Return whether an action with this interval is due after a step; step 0 and the last step are always included.

    >>> [step for step in range(9) if is_due(3, step, 8)]
    [0, 3, 6, 8]
    """
    return every > 0 and (step % every == 0 or step == steps)
