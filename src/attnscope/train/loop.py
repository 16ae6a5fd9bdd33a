"""The loop: read some rows, see how wrong the model is about them, change its weights a little, and again.

In: a recipe, and a folder for all that comes of it. Out: the trained model. The same loop runs alone and on every rank
that torchrun starts; what differs then stands in `parallel`. A folder in which a run was interrupted, by whatever, goes
on from its last checkpoint and ends with the same numbers.
Does not know: files of text, tasks, how ranks divide the work. Memory: the weights four times (themselves, gradients,
two momenta), and the activations of one part of a batch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sized
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from attnscope.attention import Documents
from attnscope.errors import SettingError
from attnscope.models import Decoder
from attnscope.train import monitoring
from attnscope.train.batch import IGNORE_INDEX, Batch
from attnscope.train.checkpoint import CheckpointManager
from attnscope.train.display import Display
from attnscope.train.interrupts import stop_on_signal
from attnscope.train.metrics import MetricsWriter
from attnscope.train.parallel import Ranks, clip_grad_norm, init_ranks
from attnscope.train.recipe import Data, Recipe
from attnscope.train.run_folder import claim, prepare_data, write_model
from attnscope.train.settings import Settings, is_due, learning_rate
from attnscope.train.throughput import ThroughputMeter, flops_per_token, peak_flops


class TrainingResult(NamedTuple):
    """What came of a run."""

    model: nn.Module | None
    """Whole, in eval mode; None on all ranks but the first."""
    step: int
    """Steps that were taken; fewer than asked for if somebody stopped the run."""
    validation_loss: float
    """In nats per token; NaN if the run was stopped."""


class StepResult(NamedTuple):
    """What a step found out."""

    loss: float
    """The mean over the batch, before the weights were changed."""
    gradient: float
    """The length of the gradient, before it was shortened."""
    stopped: bool
    """Whether any rank was asked to stop."""


def train(recipe: Recipe, folder: str | Path, *, progress: bool = True) -> TrainingResult:
    """Train a recipe in a folder, or go on with what was begun there.

    Ctrl-C, and SIGTERM, end it after the step at hand, with a checkpoint; asked again, it goes on.
    """
    folder = Path(folder)
    with init_ranks(recipe.settings) as ranks:
        data = prepare_data(recipe, folder, ranks)
        with (
            stop_on_signal() as stopping,
            Display(recipe.settings.steps, shown=progress and ranks.is_first) as display,
            Run(recipe, data, folder, ranks, display) as run,
        ):
            return run.until(stopping)


class Run:
    """One run on one rank: the model, its optimizer, and how far they have come."""

    def __init__(self, recipe: Recipe, data: Data, folder: Path, ranks: Ranks, display: Display):
        self.recipe, self.settings, self.data, self.folder, self.ranks = recipe, recipe.settings, data, folder, ranks
        self.display, self.clock, self.validation_loss = display, ThroughputMeter(), math.nan
        torch.manual_seed(self.settings.seed)  # the first weights are the same on all ranks
        model = recipe.model(data, self.settings)
        self.weights = sum(parameter.numel() for parameter in model.parameters())
        self.flops = flops_per_token(model, self.settings.sequence_length)
        self.peak = peak_flops(ranks.device, bf16=self.settings.bf16) * ranks.world_size
        self.model = ranks.shard(model)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.checkpoints = CheckpointManager(folder / "checkpoints", ranks, keep=self.settings.keep_checkpoints)
        self.step = self.checkpoints.load(self.model, self.optimizer)
        if ranks.is_first:
            claim(recipe, folder)
        self.metrics = MetricsWriter(folder, self.step or -1) if ranks.is_first else None  # -1: from the beginning
        # The weights are the same; heads are watched in the model that was not compiled.
        self.forward = torch.compile(self.model) if self.settings.compile else self.model

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.checkpoints.settle()
        if self.metrics is not None:
            self.metrics.close()

    def until(self, stopping: threading.Event) -> TrainingResult:
        """Train to the last step, or until somebody asks to stop."""
        if self.step:
            self.display.say(f"going on after step {self.step:,}")
        else:
            tokens = self.settings.steps * self.settings.batch_size * self.settings.sequence_length
            self.display.say(f"{self.recipe.name}: {self.weights:,} weights learn from {tokens:,} tokens")
            self.look()
        stopped = False
        while self.step < self.settings.steps and not stopped:
            learned = self.learn(stopping)
            stopped = learned.stopped
            self.step += 1
            if is_due(self.settings.log_every, self.step, self.settings.steps):
                self.log(learned)
            self.look()
            if stopped or is_due(self.settings.checkpoint_every, self.step, self.settings.steps):
                self.checkpoints.save(self.model, self.optimizer, self.step)
        self.checkpoints.finish()
        return self.finished(stopped)

    def learn(self, stopping: threading.Event) -> StepResult:
        """One step."""
        settings, ranks = self.settings, self.ranks
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        # Dropout: the same when a run goes on from a checkpoint, and other for rows that are other.
        torch.manual_seed(settings.seed + self.step * ranks.num_replicas + ranks.replica)
        parts = self.parts()
        (count,) = ranks.sum_over_ranks(sum(int((part.targets != IGNORE_INDEX).sum()) for part in parts))
        total = 0.0
        for number, part in enumerate(parts, start=1):
            ranks.set_gradient_sync(self.model, number == len(parts))
            loss = sum_loss(self.logits(part), part.targets)
            # Ranks see different tokens, and their gradients are averaged: times their number, that is the sum.
            (loss * (ranks.num_replicas / max(count, 1.0))).backward()
            total += float(loss.detach())
        gradient = clip_grad_norm(list(self.model.parameters()), settings.max_grad_norm)
        if not math.isfinite(gradient):
            raise SettingError(
                f"train: the gradient of step {self.step + 1} is {gradient}; begin again in another folder with a "
                "lower learning rate or a longer warm-up"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clock.count(settings.batch_size * settings.sequence_length)
        total, asked = ranks.sum_over_ranks(total, float(stopping.is_set()))
        return StepResult(total / max(count, 1.0), gradient, asked > 0)

    def parts(self) -> list[Batch]:
        """What this rank reads of the step's batch, in as many parts as are accumulated."""
        first, rows = (
            self.step * self.settings.batch_size,
            self.settings.batch_size // self.settings.gradient_accumulation_steps,
        )
        return [
            self.ranks.local_batch(self.data.training.get_batch(self.ranks.local_samples(first + part * rows, rows)))
            for part in range(self.settings.gradient_accumulation_steps)
        ]

    def logits(self, batch: Batch) -> Tensor:
        """The scores of every token of the vocabulary at each position."""
        with (
            torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.settings.bf16),
            self.ranks.attention_context(self.settings.sequence_length),
        ):
            return self.forward(batch.input_ids, **model_inputs(batch)).float()

    def log(self, learned: StepResult) -> None:
        """Write and show how it goes."""
        speed = self.clock.speed()
        share = None if self.flops is None else speed * self.flops / self.peak
        left = (self.settings.steps - self.step) * self.settings.batch_size * self.settings.sequence_length / speed
        self.display.step(self.step, learned.loss, speed, share, left)
        self.note(
            loss=learned.loss,
            grad_norm=learned.gradient,
            learning_rate=learning_rate(self.settings, self.step - 1),
            tokens_per_second=speed,
        )

    def look(self) -> None:
        """Whatever is due after this step: validation, a sample of text, the heads."""
        settings, step = self.settings, self.step
        self.clock.count(0)
        if is_due(settings.evaluate_every, step, settings.steps):
            self.validation_loss, accuracy = self.evaluate()
            self.note(validation_loss=self.validation_loss, validation_accuracy=accuracy)
            self.display.say(
                f"step {step:,}  validation loss {self.validation_loss:.4f} nats per token, {accuracy:.1%} right"
            )
        if is_due(settings.sample_every, step, settings.steps):
            model = self.gather_model()
            text = (
                None if model is None else monitoring.sample(model, self.data, self.recipe.prompt, seed=settings.seed)
            )
            if text is not None:
                self.note(sample=text)
                self.display.say(f"step {step:,}  sample:\n{text}\n")
        if is_due(settings.heads_every, step, settings.steps):
            model = self.gather_model()
            if model is not None:
                monitoring.score(model, self.data, self.folder, step)
        self.clock.leave_out()

    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on rows that were not learned from, in whole batches of them."""
        settings, ranks = self.settings, self.ranks
        source, rows = self.data.validation, settings.batch_size // settings.gradient_accumulation_steps
        until = len(source) if isinstance(source, Sized) else settings.evaluate_sequences
        total = right = count = 0.0
        with monitoring.evaluation_mode(self.model):
            for first in range(0, until, rows):
                samples = ranks.local_samples(first, rows)
                batch = source.get_batch(samples)
                counts = torch.tensor([sample < until for sample in samples])[:, None]  # no row is counted twice
                batch = ranks.local_batch(batch._replace(targets=torch.where(counts, batch.targets, IGNORE_INDEX)))
                logits = self.logits(batch)
                total += float(sum_loss(logits, batch.targets))
                right += int((logits.argmax(-1) == batch.targets).sum())
                count += int((batch.targets != IGNORE_INDEX).sum())
        ranks.reshard(self.model)
        total, right, count = ranks.sum_over_ranks(total, right, count)
        return total / max(count, 1.0), right / max(count, 1.0)

    def gather_model(self) -> nn.Module | None:
        """The model in one piece, on the first rank; all ranks have to call this, and the others get None."""
        if self.ranks.world_size == 1:
            return self.model
        weights = self.ranks.gather_parameters(self.model)
        if not self.ranks.is_first:
            return None
        assert isinstance(self.model, Decoder)
        with torch.device("meta"):
            whole = Decoder(self.model.config)
        whole.load_state_dict(weights, assign=True)
        return whole

    def finished(self, stopped: bool) -> TrainingResult:
        """Leave the model behind, and say how to go on."""
        if not stopped and math.isnan(self.validation_loss):
            self.validation_loss, _ = self.evaluate()
        model = self.gather_model()
        if model is not None:
            self.display.say(write_model(model.eval(), self.data.tokenizer, self.folder))
        if stopped:
            self.display.say(f"stopped after step {self.step:,}; the same command goes on from there")
        return TrainingResult(model, self.step, math.nan if stopped else self.validation_loss)

    def note(self, **found: float | str) -> None:
        """Keep what was found, on the rank that writes."""
        if self.metrics is not None:
            self.metrics.write(self.step, **found)


def sum_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of all tokens that count, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")


def model_inputs(batch: Batch) -> dict[str, Any]:
    """What a model is told beside the tokens, where there is something to tell."""
    told: dict[str, Any] = {}
    if batch.document_ids is not None:
        told["mask"] = Documents(batch.document_ids)
    if batch.position_ids is not None:
        told["positions"] = batch.position_ids
    return told


def make_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """AdamW that decays matrices and leaves vectors alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)
